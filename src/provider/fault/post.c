/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "post.h"
#include "async.h"
#include "channel.h"
#include "core/clock.h"
#include "core/error.h"
#include "failure.h"
#include "fault.h"
#include "persona.h"
#include "scatter.h"

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
	under.bind_mw.mw = pier_container_of(wr->bind_mw.mw, struct fault_mw, ibv)->under;
	if (wr->bind_mw.bind_info.mr)
		under.bind_mw.bind_info.mr = fault_under_mr(wr->bind_mw.bind_info.mr);
	return under;
}

static void set_timers_of_qp(const struct fault_qp *qp)
{
	pier_fault_set_timer(qp->ibv.send_cq);
	if (qp->ibv.recv_cq != qp->ibv.send_cq)
		pier_fault_set_timer(qp->ibv.recv_cq);
}

/* 0, or a positive errno. */
static int post_to_device(struct fault_qp *qp, struct ibv_send_wr *under)
{
	struct ibv_send_wr *bad;
	int error = ibv_post_send(qp->under, under, &bad);

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
	set_timers_of_qp(qp);
	return error;
}

/* Clears an old error sentence if the device leaves none of its own. */
static void forget_sentence(const struct fault_qp *qp)
{
	if (!fault_context(qp->ibv.context)->beneath->explains_posts)
		pier_clear_error();
}

/* Posts one request at a time: each is an occasion of the plan. */
int pier_fault_post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr,
			 struct ibv_send_wr **bad_wr)
{
	struct fault_qp *qp = fault_qp(ibv);
	int error = 0;

	forget_sentence(qp);
	pthread_mutex_lock(&fault_context(qp->ibv.context)->lock);
	for (; wr && !error; wr = wr->next) {
		error = send_one(qp, wr);
		if (error)
			*bad_wr = wr;
	}
	pthread_mutex_unlock(&fault_context(qp->ibv.context)->lock);
	return pier_persona_post_errno(fault_context(qp->ibv.context)->plan.persona,
				       error);
}

/* 0, or a positive errno. */
static int receive_one(struct fault_qp *qp, const struct ibv_recv_wr *wr)
{
	struct ibv_recv_wr under = *wr, *bad;
	int error = pier_fault_fails(&fault_context(qp->ibv.context)->plan,
				     FAULT_POST_RECV);

	under.next = NULL;
	if (!error && qp->scatters && !pier_fault_note_receive(&qp->receives, wr))
		error = ENOMEM;
	if (error)
		return error;
	error = ibv_post_recv(qp->under, &under, &bad);
	if (error && qp->scatters)
		pier_fault_forget_receive(&qp->receives);
	return error;
}

int pier_fault_post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr,
			 struct ibv_recv_wr **bad_wr)
{
	struct fault_qp *qp = fault_qp(ibv);
	int error = 0;

	forget_sentence(qp);
	pthread_mutex_lock(&fault_context(qp->ibv.context)->lock);
	for (; wr && !error; wr = wr->next) {
		error = receive_one(qp, wr);
		if (error)
			*bad_wr = wr;
	}
	pthread_mutex_unlock(&fault_context(qp->ibv.context)->lock);
	return pier_persona_post_errno(fault_context(qp->ibv.context)->plan.persona,
				       error);
}
