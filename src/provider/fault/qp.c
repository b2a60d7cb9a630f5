/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "cq.h"
#include "failure.h"
#include "fault.h"
#include "lie.h"
#include "persona.h"
#include "post.h"
#include "qp.h"

struct ibv_srq *pier_fault_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct fault_context *context = fault_context(pd->context);
	const struct pier_persona *persona = context->plan.persona;
	struct fault_srq *srq = fault_allocate(pd->context, FAULT_CREATE_SRQ,
					       sizeof(*srq));
	int error;

	if (!srq)
		return NULL;
	error = persona ? pier_persona_check_srq(persona, &attr->attr) : 0;
	if (error)
		errno = error;
	else
		srq->under = context->beneath->create_srq(fault_pd(pd)->under, attr);
	if (!srq->under)
		return fault_free(srq);
	pier_list_init(&srq->receives);
	srq->ibv.context = pd->context;
	srq->ibv.pd = pd;
	srq->ibv.srq_context = attr->srq_context;
	srq->ibv.handle = srq->under->handle;
	return &srq->ibv;
}

int pier_fault_destroy_srq(struct ibv_srq *ibv)
{
	struct fault_context *context = fault_context(ibv->context);
	struct fault_srq *srq = fault_srq(ibv);
	int error = fault_call(context, FAULT_DESTROY_SRQ, destroy_srq, srq->under);

	if (error)
		return error;
	pier_fault_forget_receives(&srq->receives);
	free(srq);
	return 0;
}

static int check_init(const struct ibv_pd *pd, const struct ibv_qp_init_attr *attr)
{
	if (!attr->send_cq || !attr->recv_cq || attr->send_cq->context != pd->context ||
	    attr->recv_cq->context != pd->context)
		return pier_fail(EINVAL, "fault: a queue pair needs two CQs of the "
					 "context of its PD");
	return 0;
}

/* Sets errno if the persona refuses the queue pair, as far as its driver does. */
static bool persona_refuses(const struct fault_context *context,
			    const struct ibv_qp_init_attr *attr)
{
	const struct pier_persona *persona = context->plan.persona;
	int error = persona ? pier_persona_check_qp(persona, attr) : 0;

	if (error && !persona->forgets_errno)
		errno = error;
	return error != 0;
}

static struct ibv_qp *create_under(const struct pier_provider *beneath, struct ibv_pd *pd,
				   struct ibv_qp_init_attr *attr, bool direct,
				   uint32_t parts)
{
	if (parts)
		return beneath->create_join_qp(pd, attr, parts);
	return direct ? pier_create_direct_qp(beneath, pd, attr)
		      : beneath->create_qp(pd, attr);
}

/* The device beneath locks and counts in its own fields. parts: for join_mrs(), or 0. */
static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr,
				bool direct, uint32_t parts)
{
	struct fault_context *context = fault_context(pd->context);
	const struct pier_persona *persona = context->plan.persona;
	struct ibv_qp_init_attr under = *attr;
	struct fault_qp *qp;
	uint32_t wider;
	int error;

	if (fault_fails(pd->context, FAULT_CREATE_QP) || persona_refuses(context, attr))
		return NULL;
	if (check_init(pd, attr)) {
		errno = EINVAL;
		return NULL;
	}
	qp = calloc(1, sizeof(*qp) + attr->cap.max_send_wr * sizeof(qp->withheld[0]));
	if (!qp)
		return NULL;
	qp->withheld_capacity = attr->cap.max_send_wr;
	under.send_cq = fault_cq(attr->send_cq)->under;
	under.recv_cq = fault_cq(attr->recv_cq)->under;
	if (attr->srq)
		under.srq = fault_srq(attr->srq)->under;
	wider = pier_fault_widen(context, &under.cap);
	qp->under = create_under(context->beneath, fault_pd(pd)->under, &under, direct,
				 parts);
	if (!qp->under)
		return fault_free(qp);
	attr->cap = under.cap;
	attr->cap.max_send_sge -= wider;
	qp->ibv.context = pd->context;
	qp->ibv.qp_context = attr->qp_context;
	qp->ibv.pd = pd;
	qp->ibv.send_cq = attr->send_cq;
	qp->ibv.recv_cq = attr->recv_cq;
	qp->ibv.srq = attr->srq;
	qp->ibv.handle = qp->under->handle;
	qp->ibv.qp_num = qp->under->qp_num;
	qp->ibv.qp_type = attr->qp_type;
	qp->ibv.state = IBV_QPS_RESET;
	qp->signals_all = attr->sq_sig_all;
	qp->scatters = !direct && persona && persona->max_scatter > 0;
	pier_list_init(&qp->receives);
	error = pier_fault_prepare_lies(qp, &under.cap);
	if (error) {
		context->beneath->destroy_qp(qp->under);
		errno = error;
		return fault_free(qp);
	}
	pthread_mutex_lock(&context->lock);
	pier_list_append(&context->qps, &qp->link);
	pthread_mutex_unlock(&context->lock);
	return &qp->ibv;
}

struct ibv_qp *pier_fault_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	return create_qp(pd, attr, false, 0);
}

struct ibv_qp *pier_fault_create_direct_qp(struct ibv_pd *pd,
					   struct ibv_qp_init_attr *attr)
{
	return create_qp(pd, attr, true, 0);
}

struct ibv_qp *pier_fault_create_join_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr,
					 uint32_t parts)
{
	return create_qp(pd, attr, true, parts);
}

/* From now on its CQs return no completion of an earlier request. */
static void forget_requests(struct fault_qp *qp)
{
	pier_fault_purge_cq(qp->ibv.send_cq, qp->ibv.qp_num);
	pier_fault_purge_cq(qp->ibv.recv_cq, qp->ibv.qp_num);
	memset(qp->failed, 0, sizeof(qp->failed));
	qp->dies_at = 0;
	qp->unanswered = 0;
	qp->withheld_count = 0;
	qp->has_first_failed = false;
	pier_fault_forget_receives(&qp->receives);
	pier_fault_forget_reads(qp);
}

/*
 * Takes the reads that a queue pair serves, in place of those that it served before.
 * EINVAL: its device has not as many left, if all of its queue pairs share them.
 */
static int take_rd_atomic(struct fault_context *context, struct fault_qp *qp,
			  uint8_t depth)
{
	const struct pier_persona *persona = context->plan.persona;
	int error = 0, taken;

	pthread_mutex_lock(&context->lock);
	taken = context->rd_atomic - qp->dest_rd_atomic + depth;
	if (persona->shares_rd_atomic && taken > persona->limits.max_res_rd_atom) {
		error = EINVAL;
	} else {
		context->rd_atomic = taken;
		qp->dest_rd_atomic = depth;
	}
	pthread_mutex_unlock(&context->lock);
	return error;
}

static uint8_t lower_depth(uint8_t depth, int limit)
{
	return depth > limit ? (uint8_t)limit : depth;
}

/* In the terms of the device beneath, which may have fewer reads and GIDs. */
static void translate_attr(const struct fault_context *context, struct ibv_qp_attr *attr)
{
	uint32_t type;

	attr->max_rd_atomic = lower_depth(attr->max_rd_atomic,
					  context->limits.max_qp_init_rd_atom);
	attr->max_dest_rd_atomic = lower_depth(attr->max_dest_rd_atomic,
					       context->limits.max_qp_rd_atom);
	attr->ah_attr.grh.sgid_index = (uint8_t)pier_persona_find_gid(
		context->plan.persona, attr->ah_attr.grh.sgid_index, &type);
}

static void note_attr(struct fault_context *context, struct fault_qp *qp,
		      const struct ibv_qp_attr *attr, int mask)
{
	if (mask & IBV_QP_MAX_QP_RD_ATOMIC)
		qp->rd_atomic = attr->max_rd_atomic;
	if (mask & IBV_QP_AV)
		qp->sgid_index = attr->ah_attr.grh.sgid_index;
	if (!(mask & IBV_QP_STATE))
		return;
	if (attr->qp_state == IBV_QPS_RESET)
		take_rd_atomic(context, qp, 0);
	if (attr->qp_state == IBV_QPS_RESET || attr->qp_state == IBV_QPS_ERR)
		qp->spent = true;
}

/* 0, or the errno of the persona or of the device beneath. */
static int modify_as_persona(struct fault_context *context, struct fault_qp *qp,
			     const struct ibv_qp_attr *attr, int mask)
{
	struct ibv_qp_attr under = *attr;
	uint8_t before = qp->dest_rd_atomic;
	int error = pier_persona_check_transition(context->plan.persona, qp->ibv.state,
						  qp->spent, attr, mask);

	if (!error && (mask & IBV_QP_MAX_DEST_RD_ATOMIC))
		error = take_rd_atomic(context, qp, attr->max_dest_rd_atomic);
	if (error)
		return error;
	translate_attr(context, &under);
	error = context->beneath->modify_qp(qp->under, &under, mask);
	if (!error)
		note_attr(context, qp, attr, mask);
	else if (mask & IBV_QP_MAX_DEST_RD_ATOMIC)
		take_rd_atomic(context, qp, before);
	return error;
}

int pier_fault_modify_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask)
{
	struct fault_context *context = fault_context(ibv->context);
	struct fault_qp *qp = fault_qp(ibv);
	int error = fault_fails(ibv->context, FAULT_MODIFY_QP);

	if (!error && context->plan.persona)
		error = modify_as_persona(context, qp, attr, mask);
	else if (!error)
		error = context->beneath->modify_qp(qp->under, attr, mask);
	if (error || !(mask & IBV_QP_STATE))
		return error;
	pthread_mutex_lock(&context->lock);
	ibv->state = attr->qp_state;
	if (attr->qp_state == IBV_QPS_RESET)
		forget_requests(qp);
	else if (attr->qp_state == IBV_QPS_ERR)
		pier_fault_release_withheld(qp);
	pthread_mutex_unlock(&context->lock);
	return 0;
}

int pier_fault_query_qp(struct ibv_qp *ibv, struct ibv_qp_attr *ret_attr, int mask,
			struct ibv_qp_init_attr *ret_init_attr)
{
	struct fault_context *context = fault_context(ibv->context);
	int error = fault_call(context, FAULT_QUERY_QP, query_qp, fault_qp(ibv)->under,
			       ret_attr, mask, ret_init_attr);

	if (error)
		return error;
	if (context->plan.persona) {
		ret_attr->max_rd_atomic = fault_qp(ibv)->rd_atomic;
		ret_attr->max_dest_rd_atomic = fault_qp(ibv)->dest_rd_atomic;
		ret_attr->ah_attr.grh.sgid_index = fault_qp(ibv)->sgid_index;
	}
	ret_init_attr->qp_context = ibv->qp_context;
	ret_init_attr->send_cq = ibv->send_cq;
	ret_init_attr->recv_cq = ibv->recv_cq;
	ret_init_attr->srq = ibv->srq;
	return 0;
}

int pier_fault_destroy_qp(struct ibv_qp *ibv)
{
	struct fault_context *context = fault_context(ibv->context);
	struct fault_qp *qp = fault_qp(ibv);
	int error = fault_fails(ibv->context, FAULT_DESTROY_QP);

	if (error)
		return error;
	/* First, so that a polling thread does not find it while it goes. */
	pthread_mutex_lock(&context->lock);
	pier_list_remove(&qp->link);
	pthread_mutex_unlock(&context->lock);
	error = context->beneath->destroy_qp(qp->under);
	pthread_mutex_lock(&context->lock);
	if (error) {
		pier_list_append(&context->qps, &qp->link);
	} else {
		forget_requests(qp);
		pier_fault_drop_events(context, &qp->ibv);
		context->rd_atomic -= qp->dest_rd_atomic;
	}
	pthread_mutex_unlock(&context->lock);
	if (error)
		return error;
	pier_fault_end_lies(qp);
	free(qp);
	return 0;
}

int pier_fault_get_qp_address(struct ibv_qp *qp, uint8_t *ret_address, size_t size)
{
	const struct fault_context *context = fault_context(qp->context);
	int error = fault_fails(qp->context, FAULT_GET_QP_ADDRESS);

	return error ? -error
		     : context->beneath->get_qp_address(fault_qp(qp)->under, ret_address,
							size);
}

int pier_fault_set_qp_address(struct ibv_qp *qp, const uint8_t *address, size_t length)
{
	const struct fault_context *context = fault_context(qp->context);
	int error = fault_fails(qp->context, FAULT_SET_QP_ADDRESS);

	return error ? -error
		     : context->beneath->set_qp_address(fault_qp(qp)->under, address,
							length);
}
