/* SPDX-License-Identifier: BSD-3-Clause */
#include <sys/mman.h>

#include "core/page.h"
#include "fault.h"
#include "persona.h"
#include "reach.h"

static bool reaches_memory(const struct fault_context *context)
{
	return (context->plan.persona && context->plan.persona->max_scatter) ||
	       pier_fault_plans_lies(&context->plan);
}

void pier_fault_reach_region(struct fault_mr *mr, void *addr, size_t length,
			     uint64_t iova)
{
	struct fault_context *context = fault_context(mr->ibv.context);

	if (!reaches_memory(context))
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
	uint64_t ahead = offset % pier_host_page();

	if (!reaches_memory(fault_context(mr->ibv.context)))
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

uint8_t *pier_fault_find_bytes(const struct fault_context *context,
			       const struct ibv_sge *element, size_t length)
{
	pier_list_for_each(const struct fault_mr, mr, &context->mrs, link) {
		if (mr->ibv.lkey == element->lkey && element->addr >= mr->iova &&
		    length <= mr->length &&
		    element->addr - mr->iova <= mr->length - length)
			return mr->bytes + (element->addr - mr->iova);
	}
	return NULL;
}
