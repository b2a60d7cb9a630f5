/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>

#include "modify.h"
#include "core/error.h"
#include "cq.h"
#include "provider/soft/connect/connect.h"
#include "provider/soft/connect/connection.h"
#include "provider/soft/engine.h"
#include "provider/soft/link/attach.h"
#include "provider/soft/link/grant_given.h"
#include "qp.h"
#include "srq.h"
#include "stream.h"
#include "transition.h"

static void store_path_attributes(struct ibv_qp_attr *to, const struct ibv_qp_attr *from,
				  int mask)
{
	if (mask & IBV_QP_PKEY_INDEX)
		to->pkey_index = from->pkey_index;
	if (mask & IBV_QP_PORT)
		to->port_num = from->port_num;
	if (mask & IBV_QP_AV)
		to->ah_attr = from->ah_attr;
	if (mask & IBV_QP_ALT_PATH) {
		to->alt_ah_attr = from->alt_ah_attr;
		to->alt_pkey_index = from->alt_pkey_index;
		to->alt_port_num = from->alt_port_num;
		to->alt_timeout = from->alt_timeout;
	}
	if (mask & IBV_QP_PATH_MTU)
		to->path_mtu = from->path_mtu;
	if (mask & IBV_QP_DEST_QPN)
		to->dest_qp_num = from->dest_qp_num;
	if (mask & IBV_QP_RQ_PSN)
		to->rq_psn = from->rq_psn & 0xffffff;
	if (mask & IBV_QP_SQ_PSN)
		to->sq_psn = from->sq_psn & 0xffffff;
}

static void store_attributes(struct ibv_qp_attr *to, const struct ibv_qp_attr *from,
			     int mask)
{
	store_path_attributes(to, from, mask);
	if (mask & IBV_QP_QKEY)
		to->qkey = from->qkey;
	if (mask & IBV_QP_ACCESS_FLAGS)
		to->qp_access_flags = from->qp_access_flags;
	if (mask & IBV_QP_MAX_DEST_RD_ATOMIC)
		to->max_dest_rd_atomic = from->max_dest_rd_atomic;
	if (mask & IBV_QP_MAX_QP_RD_ATOMIC)
		to->max_rd_atomic = from->max_rd_atomic;
	if (mask & IBV_QP_MIN_RNR_TIMER)
		to->min_rnr_timer = from->min_rnr_timer;
	if (mask & IBV_QP_TIMEOUT)
		to->timeout = from->timeout;
	if (mask & IBV_QP_RETRY_CNT)
		to->retry_cnt = from->retry_cnt;
	if (mask & IBV_QP_RNR_RETRY)
		to->rnr_retry = from->rnr_retry;
}

static void reset_queues(struct soft_qp *qp)
{
	struct soft_send_queue *sq = &qp->sq;
	struct soft_recv_queue *rq = &qp->rq;

	pier_soft_purge_cq((struct soft_cq *)qp->ibv.send_cq, qp);
	pier_soft_purge_cq((struct soft_cq *)qp->ibv.recv_cq, qp);
	pthread_mutex_lock(&sq->lock);
	pthread_mutex_lock(&rq->lock);
	atomic_fetch_add(&sq->resets, 1);
	atomic_store(&sq->head, 0);
	atomic_store(&sq->tail, 0);
	atomic_store(&rq->head, 0);
	atomic_store(&rq->tail, 0);
	sq->done = sq->transmitted = sq->queued = rq->done = 0;
	sq->done_msn = sq->queued_msn = 0;
	sq->reads = 0;
	sq->barrier = 0;
	sq->silent = sq->broken = false;
	sq->rnr_until = 0;
	pthread_mutex_unlock(&rq->lock);
	pthread_mutex_unlock(&sq->lock);
	memset(&qp->responder, 0, sizeof(qp->responder));
	memset(&qp->attr, 0, sizeof(qp->attr));
	qp->busy = false;
	qp->ud.stalled_since = 0;
	qp->ud.has_slow = false;
	if (qp->srq)
		pier_soft_drop_taken(qp->srq, &qp->taken);
}

/*
 * After a RESET a queue pair is a new one to everybody. The holder of an old endpoint
 * can neither connect to it nor pass for its peer, and a stored stream is dropped.
 * Without a new secret it stays as it is.
 */
static int to_reset(struct soft_qp *qp)
{
	int error = pier_soft_renew_secret(&qp->connection);

	if (error)
		return error;
	pier_soft_set_state(qp, IBV_QPS_RESET);
	pier_soft_close_link(&qp->link);
	pier_soft_discard_stream(&qp->connection);
	reset_queues(qp);
	explicit_bzero(&qp->connection.peer_address, sizeof(qp->connection.peer_address));
	qp->connection.has_peer_address = false;
	qp->lost_in_rtr = false;
	return 0;
}

static void to_error(struct soft_qp *qp)
{
	pier_soft_send_last_answers(qp);
	pier_soft_close_link(&qp->link);
	pier_soft_fail_qp(qp, IBV_WC_SUCCESS);
}

static int enter_state(struct soft_qp *qp, enum ibv_qp_state to,
		       const struct ibv_qp_attr *attr, int mask)
{
	enum ibv_qp_state from = qp->ibv.state;

	if (to == IBV_QPS_RESET)
		return to_reset(qp);
	qp->lost_in_rtr = false;
	store_attributes(&qp->attr, attr, mask);
	if (mask & IBV_QP_ACCESS_FLAGS)
		pier_soft_revoke_link_grants(&qp->link);
	if (to == IBV_QPS_ERR) {
		to_error(qp);
		return 0;
	}
	if (to == IBV_QPS_RTS && from == IBV_QPS_RTR)
		qp->sq.rnr_left = qp->attr.rnr_retry;
	pier_soft_set_state(qp, to);
	pier_soft_take_stream(qp);
	return 0;
}

/*
 * Hardware does not notice in RTR that the peer is gone, so the step to RTS never fails
 * for that reason. Here it succeeds too, and the queue pair stays in ERR, as if the peer
 * had left right after the step.
 */
static void pass_through_rts(struct soft_qp *qp, const struct ibv_qp_attr *attr, int mask)
{
	qp->lost_in_rtr = false;
	store_attributes(&qp->attr, attr, mask);
}

/* The engine may have moved the queue pair to ERR while the peer was called. */
static int commit_state(struct soft_qp *qp, enum ibv_qp_state from, enum ibv_qp_state to,
			const struct ibv_qp_attr *attr, int mask)
{
	struct soft_context *context = soft_context_of(qp);
	int error = 0;

	pier_soft_lock(&context->engine);
	if (qp->ibv.state == from || to == IBV_QPS_ERR || to == IBV_QPS_RESET)
		error = enter_state(qp, to, attr, mask);
	else if (from == IBV_QPS_RTR && qp->lost_in_rtr)
		pass_through_rts(qp, attr, mask);
	else
		error = pier_fail(EINVAL, "soft0: QP %#x went to ERR in the meantime",
				  qp->ibv.qp_num);
	pier_soft_unlock(&context->engine);
	return error;
}

/* The state that the application left the queue pair in, or ERR. */
static enum ibv_qp_state current_state(struct soft_qp *qp)
{
	struct soft_context *context = soft_context_of(qp);
	enum ibv_qp_state state;

	pier_soft_lock(&context->engine);
	state = qp->ibv.state;
	if (state == IBV_QPS_ERR && qp->lost_in_rtr)
		state = IBV_QPS_RTR;
	pier_soft_unlock(&context->engine);
	return state;
}

int pier_soft_modify_qp(struct ibv_qp *ibv_qp, struct ibv_qp_attr *attr, int mask)
{
	struct soft_qp *qp = (struct soft_qp *)ibv_qp;
	enum ibv_qp_state from, to;
	int error;

	pthread_mutex_lock(&ibv_qp->mutex);
	from = current_state(qp);
	error = pier_soft_check_transition(ibv_qp->qp_type, from, attr, mask, &to);
	if (!error && ibv_qp->qp_type == IBV_QPT_RC && from == IBV_QPS_INIT &&
	    to == IBV_QPS_RTR)
		error = pier_soft_connect(&qp->connection, attr);
	if (!error)
		error = commit_state(qp, from, to, attr, mask);
	pthread_mutex_unlock(&ibv_qp->mutex);
	return -error;
}

int pier_soft_query_qp(struct ibv_qp *ibv_qp, struct ibv_qp_attr *ret_attr, int mask,
		       struct ibv_qp_init_attr *ret_init_attr)
{
	struct soft_qp *qp = (struct soft_qp *)ibv_qp;
	struct soft_context *context = soft_context_of(qp);

	(void)mask; /* all attributes, as drivers return them */
	pier_soft_lock(&context->engine);
	*ret_attr = qp->attr;
	ret_attr->qp_state = ret_attr->cur_qp_state = qp->ibv.state;
	ret_attr->path_mig_state = IBV_MIG_MIGRATED;
	ret_attr->cap = qp->init.cap;
	pier_soft_unlock(&context->engine);
	*ret_init_attr = qp->init;
	return 0;
}

int pier_soft_get_qp_address(struct ibv_qp *ibv_qp, uint8_t *ret_address, size_t size)
{
	const struct soft_qp *qp = (struct soft_qp *)ibv_qp;
	struct soft_context *context = soft_context_of(qp);
	const struct soft_listeners *listeners = &context->node.listeners;
	struct soft_address address = {
		.port = listeners->port,
		.count = listeners->count,
	};

	pier_soft_lock(&context->engine);
	memcpy(address.secret, qp->connection.secret, sizeof(address.secret));
	pier_soft_unlock(&context->engine);
	memcpy(address.addresses, listeners->addresses, sizeof(address.addresses));
	return pier_soft_pack_address(&address, ret_address, size);
}

int pier_soft_set_qp_address(struct ibv_qp *ibv_qp, const uint8_t *bytes, size_t length)
{
	struct soft_qp *qp = (struct soft_qp *)ibv_qp;
	struct soft_context *context = soft_context_of(qp);
	struct soft_address address;
	int error = pier_soft_unpack_address(bytes, length, &address);

	if (error)
		return error;
	pthread_mutex_lock(&ibv_qp->mutex);
	pier_soft_lock(&context->engine);
	qp->connection.peer_address = address;
	qp->connection.has_peer_address = true;
	pier_soft_unlock(&context->engine);
	pthread_mutex_unlock(&ibv_qp->mutex);
	return 0;
}
