/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "channel.h"
#include "core/clock.h"
#include "core/error.h"
#include "failure.h"
#include "fault.h"
#include "lie.h"
#include "persona.h"
#include "post.h"
#include "reach.h"

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

static bool note_receive(struct pier_list *receives, const struct ibv_recv_wr *wr)
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

static void free_receive(struct receive *receive)
{
	pier_list_remove(&receive->link);
	free(receive);
}

void pier_fault_forget_receives(struct pier_list *receives)
{
	pier_list_for_each_safe(struct receive, receive, following, receives, link)
		free_receive(receive);
}

static struct receive *find_receive(struct pier_list *receives, uint64_t wr_id)
{
	pier_list_for_each(struct receive, receive, receives, link) {
		if (receive->wr_id == wr_id)
			return receive;
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
		bytes = pier_fault_find_bytes(context, &receive->sges[i], part);
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
	free_receive(receive);
}

static int withhold_request(struct fault_qp *qp, const struct ibv_send_wr *wr)
{
	if (qp->withheld_count == qp->withheld_capacity)
		return pier_fail(ENOMEM, "the send queue of %u requests is full",
				 qp->withheld_capacity);
	qp->withheld[qp->withheld_count++] = wr->wr_id;
	return 0;
}

/* A copy for the device beneath, with its own regions and windows. */
static struct ibv_send_wr translate_request(const struct ibv_send_wr *wr)
{
	struct ibv_send_wr under = *wr;

	under.next = NULL;
	if (wr->opcode != IBV_WR_BIND_MW)
		return under;
	under.bind_mw.mw = fault_mw(wr->bind_mw.mw)->under;
	if (wr->bind_mw.bind_info.mr)
		under.bind_mw.bind_info.mr = fault_mr(wr->bind_mw.bind_info.mr)->under;
	return under;
}

/* 0, or a positive errno. */
static int post_to_device(struct fault_qp *qp, struct ibv_send_wr *under)
{
	struct fault_read *read = pier_fault_lie(qp, under);
	struct ibv_send_wr *bad;
	int error = ibv_post_send(qp->under, under, &bad);

	pier_fault_note_post(qp, read, under, error);
	if (!error && (qp->signals_all || (under->send_flags & IBV_SEND_SIGNALED)))
		qp->unanswered++;
	return error;
}

/* 0, or a positive errno. */
static int send_one(struct fault_qp *qp, const struct ibv_send_wr *wr)
{
	struct pier_fault_plan *plan = &fault_context(qp->ibv.context)->plan;
	struct ibv_send_wr under = translate_request(wr);
	const struct pier_fault_rule *dead, *event;
	int error = pier_fault_fails(plan, FAULT_POST_SEND);

	if (error)
		return error;
	event = pier_fault_strikes(plan, FAULT_ASYNC, FAULT_POST_SEND);
	if (event)
		pier_fault_report_event(qp, event);
	dead = pier_fault_strikes(plan, FAULT_DEAD, FAULT_POST_SEND);
	if (dead && !qp->dies_at && qp->ibv.state != IBV_QPS_ERR)
		qp->dies_at = pier_now() + (int64_t)dead->value;
	if (!qp->dies_at)
		return post_to_device(qp, &under);
	error = -withhold_request(qp, wr);
	pier_fault_set_timer(qp->ibv.send_cq);
	if (qp->ibv.recv_cq != qp->ibv.send_cq)
		pier_fault_set_timer(qp->ibv.recv_cq);
	return error;
}

/* Clears an old error sentence if the device leaves none of its own. */
static void forget_sentence(const struct fault_context *context)
{
	if (!context->beneath->explains_posts)
		pier_clear_error();
}

/* Posts one request at a time: each is an occasion of the plan. */
int pier_fault_post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr,
			 struct ibv_send_wr **bad_wr)
{
	struct fault_context *context = fault_context(ibv->context);
	int error = 0;

	forget_sentence(context);
	pthread_mutex_lock(&context->lock);
	for (; wr && !error; wr = wr->next) {
		error = send_one(fault_qp(ibv), wr);
		if (error)
			*bad_wr = wr;
	}
	pthread_mutex_unlock(&context->lock);
	return pier_persona_post_errno(context->plan.persona, error);
}

/*
 * The requests of a queue pair or of a shared queue beneath; the other one is NULL.
 * `receives`: where they are noted for a persona that scatters, or NULL.
 */
struct receive_queue {
	struct ibv_qp *qp;
	struct ibv_srq *srq;
	struct pier_list *receives;
};

/* 0, or a positive errno. */
static int receive_one(struct fault_context *context, const struct receive_queue *queue,
		       const struct ibv_recv_wr *wr)
{
	struct ibv_recv_wr under = *wr, *bad;
	int error = pier_fault_fails(&context->plan, FAULT_POST_RECV);

	under.next = NULL;
	if (!error && queue->receives && !note_receive(queue->receives, wr))
		error = ENOMEM;
	if (error)
		return error;
	error = queue->qp ? ibv_post_recv(queue->qp, &under, &bad)
			  : ibv_post_srq_recv(queue->srq, &under, &bad);
	if (error && queue->receives)
		free_receive(pier_container_of(queue->receives->previous, struct receive,
					       link));
	return error;
}

static int post_receives(struct fault_context *context, const struct receive_queue *queue,
			 struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	int error = 0;

	forget_sentence(context);
	pthread_mutex_lock(&context->lock);
	for (; wr && !error; wr = wr->next) {
		error = receive_one(context, queue, wr);
		if (error)
			*bad_wr = wr;
	}
	pthread_mutex_unlock(&context->lock);
	return pier_persona_post_errno(context->plan.persona, error);
}

int pier_fault_post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr,
			 struct ibv_recv_wr **bad_wr)
{
	struct fault_qp *qp = fault_qp(ibv);
	const struct receive_queue queue = {
		.qp = qp->under,
		.receives = qp->scatters ? &qp->receives : NULL,
	};

	return post_receives(fault_context(ibv->context), &queue, wr, bad_wr);
}

int pier_fault_post_srq_recv(struct ibv_srq *ibv, struct ibv_recv_wr *wr,
			     struct ibv_recv_wr **bad_wr)
{
	struct fault_context *context = fault_context(ibv->context);
	const struct pier_persona *persona = context->plan.persona;
	const struct receive_queue queue = {
		.srq = fault_srq(ibv)->under,
		.receives = persona && persona->max_scatter ? &fault_srq(ibv)->receives
							    : NULL,
	};

	return post_receives(context, &queue, wr, bad_wr);
}
