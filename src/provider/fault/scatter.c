/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "scatter.h"
#include "core/page.h"
#include "persona.h"

enum {
	SPOILED = 0xdb, /* what the region has in place of the message */
	LONGEST = 64,
};

struct receive {
	struct pier_list link;
	uint64_t wr_id;
	uint32_t count;
	struct ibv_sge sges[];
};

void pier_fault_reach_region(struct fault_mr *mr, void *addr, size_t length,
			     uint64_t iova)
{
	struct fault_context *context = fault_context(mr->ibv.context);

	if (!context->plan.persona || !context->plan.persona->max_scatter)
		return;
	mr->bytes = addr;
	mr->length = length;
	mr->iova = iova;
	pthread_mutex_lock(&context->lock);
	pier_list_append(&context->mrs, &mr->link);
	pthread_mutex_unlock(&context->lock);
}

void pier_fault_reach_dmabuf(struct fault_mr *mr, int fd, uint64_t offset, size_t length,
			     uint64_t iova)
{
	const struct pier_persona *persona = fault_context(mr->ibv.context)->plan.persona;
	uint64_t ahead = offset % pier_host_page();

	if (!persona || !persona->max_scatter)
		return;
	mr->mapped = length + ahead;
	mr->mapping = mmap(NULL, mr->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
			   (off_t)(offset - ahead));
	if (mr->mapping == MAP_FAILED)
		mr->mapping = NULL;
	else
		pier_fault_reach_region(mr, (char *)mr->mapping + ahead, length, iova);
}

void pier_fault_leave_region(struct fault_mr *mr)
{
	struct fault_context *context = fault_context(mr->ibv.context);

	pthread_mutex_lock(&context->lock);
	pier_list_remove(&mr->link);
	pthread_mutex_unlock(&context->lock);
	if (mr->mapping)
		munmap(mr->mapping, mr->mapped);
}

bool pier_fault_note_receive(struct pier_list *receives, const struct ibv_recv_wr *wr)
{
	size_t size = (size_t)wr->num_sge * sizeof(struct ibv_sge);
	struct receive *receive = malloc(sizeof(*receive) + size);

	if (!receive)
		return false;
	receive->wr_id = wr->wr_id;
	receive->count = (uint32_t)wr->num_sge;
	if (size)
		memcpy(receive->sges, wr->sg_list, size);
	pier_list_append(receives, &receive->link);
	return true;
}

static void free_receive(struct pier_list *link)
{
	pier_list_remove(link);
	free(pier_container_of(link, struct receive, link));
}

void pier_fault_forget_receive(struct pier_list *receives)
{
	free_receive(receives->previous);
}

void pier_fault_forget_receives(struct pier_list *receives)
{
	pier_list_for_each_safe(link, following, receives)
		free_receive(link);
}

static struct receive *find_receive(struct pier_list *receives, uint64_t wr_id)
{
	pier_list_for_each(link, receives) {
		struct receive *receive = pier_container_of(link, struct receive, link);

		if (receive->wr_id == wr_id)
			return receive;
	}
	return NULL;
}

/* Where the CPU reaches an element's bytes; NULL: nowhere. */
static uint8_t *find_bytes(const struct fault_context *context,
			   const struct ibv_sge *element, size_t length)
{
	pier_list_for_each(link, &context->mrs) {
		const struct fault_mr *mr = pier_container_of(link, struct fault_mr,
							      link);

		if (mr->ibv.lkey == element->lkey && element->addr >= mr->iova &&
		    length <= mr->length &&
		    element->addr - mr->iova <= mr->length - length)
			return mr->bytes + (element->addr - mr->iova);
	}
	return NULL;
}

static size_t part_of(const struct ibv_sge *element, size_t left)
{
	return element->length < left ? element->length : left;
}

static bool take_message(const struct fault_context *context,
			 const struct receive *receive, size_t length,
			 uint8_t *ret_message)
{
	uint8_t *bytes;
	size_t part;

	for (uint32_t i = 0; i < receive->count && length > 0; i++) {
		part = part_of(&receive->sges[i], length);
		bytes = find_bytes(context, &receive->sges[i], part);
		if (!bytes)
			return false;
		memcpy(ret_message, bytes, part);
		memset(bytes, SPOILED, part);
		ret_message += part;
		length -= part;
	}
	return true;
}

static void copy_message(const struct receive *receive, const uint8_t *message,
			 size_t length)
{
	for (uint32_t i = 0; i < receive->count && length > 0; i++) {
		const struct ibv_sge *element = &receive->sges[i];
		size_t part = part_of(element, length);

		memcpy((void *)(uintptr_t)element->addr, message, part);
		message += part;
		length -= part;
	}
}

void pier_fault_scatter(struct fault_context *context, struct fault_qp *qp,
			const struct ibv_wc *wc)
{
	struct pier_list *receives = qp->ibv.srq ? &fault_srq(qp->ibv.srq)->receives
						 : &qp->receives;
	struct receive *receive;
	uint8_t message[LONGEST];

	if (wc->status == IBV_WC_SUCCESS && !(wc->opcode & IBV_WC_RECV))
		return;
	receive = find_receive(receives, wc->wr_id);
	if (!receive)
		return;
	if (qp->scatters && wc->status == IBV_WC_SUCCESS && wc->opcode == IBV_WC_RECV &&
	    wc->byte_len <= context->plan.persona->max_scatter &&
	    take_message(context, receive, wc->byte_len, message))
		copy_message(receive, message, wc->byte_len);
	free_receive(&receive->link);
}
