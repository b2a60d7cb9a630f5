/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "create.h"
#include "core/error.h"
#include "cq.h"
#include "datagram.h"
#include "events.h"
#include "provider/soft/connect/connect.h"
#include "provider/soft/connect/connection.h"
#include "provider/soft/engine.h"
#include "provider/soft/link/attach.h"
#include "provider/soft/regions/keys.h"
#include "qp.h"
#include "srq.h"
#include "stream.h"

/* With an SRQ the sizes of the receive queue are ignored (ibv_create_qp(3)). */
static struct ibv_qp_cap effective_cap(const struct ibv_qp_init_attr *attr)
{
	struct ibv_qp_cap cap = attr->cap;

	if (attr->srq)
		cap.max_recv_wr = cap.max_recv_sge = 0;
	return cap;
}

static int check_init(const struct ibv_pd *pd, const struct ibv_qp_init_attr *attr)
{
	const struct ibv_qp_cap cap = effective_cap(attr);

	if (attr->qp_type != IBV_QPT_RC && attr->qp_type != IBV_QPT_UD)
		return pier_fail(EOPNOTSUPP,
				 "soft0: queue pairs of type %d; only RC and UD are "
				 "supported",
				 (int)attr->qp_type);
	if (attr->qp_type == IBV_QPT_UD &&
	    soft_context(pd->context)->node.listeners.datagram_fd < 0)
		return pier_fail(EOPNOTSUPP, "soft0: no UD queue pairs here: only "
					     "programs that use verbs themselves have "
					     "them, without PIER_SOFT_UNIX=off");
	if (attr->srq && attr->srq->pd != pd)
		return pier_fail(EINVAL, "soft0: the shared receive queue is of another "
					 "PD than the queue pair");
	if (!attr->send_cq || !attr->recv_cq || attr->send_cq->context != pd->context ||
	    attr->recv_cq->context != pd->context)
		return pier_fail(EINVAL, "soft0: a queue pair needs two CQs of the "
					 "context of its PD");
	if (cap.max_send_wr > SOFT_MAX_WR || cap.max_recv_wr > SOFT_MAX_WR ||
	    cap.max_send_sge > SOFT_MAX_SGE || cap.max_recv_sge > SOFT_MAX_SGE ||
	    cap.max_inline_data > SOFT_MAX_INLINE)
		return pier_fail(EINVAL,
				 "soft0: %u/%u requests, %u/%u elements, %u bytes "
				 "inline; the limits are %d, %d and %d",
				 cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge,
				 cap.max_recv_sge, cap.max_inline_data, SOFT_MAX_WR,
				 SOFT_MAX_SGE, SOFT_MAX_INLINE);
	return 0;
}

static bool allocate_sends(struct soft_send_queue *sq, const struct ibv_qp_cap *cap)
{
	pthread_mutex_init(&sq->lock, NULL);
	sq->depth = cap->max_send_wr;
	sq->max_sge = cap->max_send_sge;
	sq->max_inline = cap->max_inline_data;
	sq->slots = calloc(sq->depth + 1, sizeof(*sq->slots));
	sq->sges = calloc((size_t)sq->depth * sq->max_sge + 1, sizeof(*sq->sges));
	sq->inline_data = calloc((size_t)sq->depth * sq->max_inline + 1, 1);
	if (!sq->slots || !sq->sges || !sq->inline_data)
		return false;
	for (uint32_t i = 0; i < sq->depth; i++) {
		sq->slots[i].sges = sq->sges + (size_t)i * sq->max_sge;
		sq->slots[i].inline_data = sq->inline_data + (size_t)i * sq->max_inline;
	}
	return true;
}

static bool allocate_recvs(struct soft_recv_queue *rq, const struct ibv_qp_cap *cap)
{
	pthread_mutex_init(&rq->lock, NULL);
	rq->depth = cap->max_recv_wr;
	rq->max_sge = cap->max_recv_sge;
	rq->slots = calloc(rq->depth + 1, sizeof(*rq->slots));
	rq->sges = calloc((size_t)rq->depth * rq->max_sge + 1, sizeof(*rq->sges));
	if (!rq->slots || !rq->sges)
		return false;
	for (uint32_t i = 0; i < rq->depth; i++)
		rq->slots[i].sges = rq->sges + (size_t)i * rq->max_sge;
	return true;
}

static void free_qp(struct soft_qp *qp)
{
	free(qp->sq.slots);
	free(qp->sq.sges);
	free(qp->sq.inline_data);
	free(qp->ud.destinations);
	if (qp->builder)
		pthread_mutex_destroy(&qp->builder->lock);
	free(qp->builder);
	free(qp->rq.slots);
	free(qp->rq.sges);
	pthread_mutex_destroy(&qp->sq.lock);
	pthread_mutex_destroy(&qp->rq.lock);
	pthread_mutex_destroy(&qp->ibv.mutex);
	pthread_cond_destroy(&qp->ibv.cond);
	explicit_bzero(qp, sizeof(*qp)); /* our secret and the peer's */
	free(qp);
}

static struct soft_qp *allocate_qp(const struct ibv_qp_init_attr *attr)
{
	struct soft_qp *qp = calloc(1, sizeof(*qp));
	bool sends, recvs;

	if (!qp)
		return NULL;
	qp->init = *attr;
	qp->init.cap = effective_cap(attr);
	qp->srq = (struct soft_srq *)attr->srq;
	qp->link.rx_fd = qp->link.tx_fd = -1;
	qp->connection.early.fd = qp->connection.early.tx_fd = -1;
	pier_list_init(&qp->end.work.active);
	pier_list_init(&qp->reach.windows);
	pier_soft_init_event_source(&qp->events, &qp->ibv);
	pthread_mutex_init(&qp->ibv.mutex, NULL);
	pthread_cond_init(&qp->ibv.cond, NULL);
	sends = allocate_sends(&qp->sq, &qp->init.cap);
	recvs = allocate_recvs(&qp->rq, &qp->init.cap);
	if (attr->qp_type == IBV_QPT_UD)
		qp->ud.destinations = calloc(qp->sq.depth + 1,
					     sizeof(*qp->ud.destinations));
	if (!sends || !recvs || (attr->qp_type == IBV_QPT_UD && !qp->ud.destinations)) {
		free_qp(qp);
		return NULL;
	}
	return qp;
}

/*
 * The low bits of a QPN are its index. The bits above change with every queue pair, so
 * that a late message to an old one does not reach its successor.
 */
static bool take_number(struct soft_context *context, struct soft_qp *qp)
{
	for (uint32_t i = 0; i < SOFT_MAX_QP; i++) {
		uint32_t index = (context->next_qp + i) % SOFT_MAX_QP;
		uint32_t generation;

		/* QPN 0 and 1 are for management. */
		if (index < 2 || context->node.connections[index])
			continue;
		generation = context->qp_generation++ % (0x1000000 / SOFT_MAX_QP);
		qp->ibv.qp_num = generation * SOFT_MAX_QP + index;
		qp->end.qpn = qp->ibv.qp_num;
		qp->ibv.handle = index;
		context->node.connections[index] = &qp->connection;
		context->next_qp = index + 1;
		return true;
	}
	return false;
}

static void use_objects(const struct soft_qp *qp)
{
	atomic_fetch_add(&soft_pd(qp->ibv.pd)->users, 1);
	atomic_fetch_add(&((struct soft_cq *)qp->ibv.send_cq)->users, 1);
	atomic_fetch_add(&((struct soft_cq *)qp->ibv.recv_cq)->users, 1);
	if (qp->srq)
		atomic_fetch_add(&qp->srq->users, 1);
}

static void leave_objects(const struct soft_qp *qp)
{
	atomic_fetch_sub(&soft_pd(qp->ibv.pd)->users, 1);
	atomic_fetch_sub(&((struct soft_cq *)qp->ibv.send_cq)->users, 1);
	atomic_fetch_sub(&((struct soft_cq *)qp->ibv.recv_cq)->users, 1);
	if (qp->srq)
		atomic_fetch_sub(&qp->srq->users, 1);
}

/* Gives the lower layers what they know of the queue pair. */
static void introduce_qp(struct soft_context *context, struct soft_qp *qp)
{
	qp->end.work.engine = &context->engine;
	qp->end.pd = qp->reach.pd = qp->ibv.pd;
	qp->end.attr = &qp->attr;
	qp->link.end = &qp->end;
	qp->connection.node = &context->node;
	qp->connection.end = &qp->end;
	qp->connection.link = &qp->link;
}

static struct ibv_qp *refuse_qp(int error)
{
	errno = error;
	return NULL;
}

struct ibv_qp *pier_soft_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct soft_context *context = soft_context(pd->context);
	int error = check_init(pd, attr);
	struct soft_qp *qp;
	bool taken;

	if (error)
		return refuse_qp(-error);
	qp = allocate_qp(attr);
	if (!qp)
		return refuse_qp(ENOMEM);
	qp->ibv.context = pd->context;
	qp->ibv.qp_context = attr->qp_context;
	qp->ibv.pd = pd;
	qp->ibv.send_cq = attr->send_cq;
	qp->ibv.recv_cq = attr->recv_cq;
	qp->ibv.srq = attr->srq;
	qp->ibv.qp_type = attr->qp_type;
	qp->ibv.state = IBV_QPS_RESET;
	introduce_qp(context, qp);
	pier_soft_lock(&context->engine);
	taken = take_number(context, qp);
	error = taken ? pier_soft_renew_secret(&qp->connection) : 0;
	if (error)
		context->node.connections[qp->ibv.handle] = NULL;
	pier_soft_unlock(&context->engine);
	if (error) {
		free_qp(qp);
		return refuse_qp(-error);
	}
	if (!taken) {
		free_qp(qp);
		pier_fail(ENOMEM, "soft0: all %d queue pairs are in use", SOFT_MAX_QP);
		return refuse_qp(ENOMEM);
	}
	use_objects(qp);
	return &qp->ibv;
}

int pier_soft_destroy_qp(struct ibv_qp *ibv_qp)
{
	struct soft_qp *qp = (struct soft_qp *)ibv_qp;
	struct soft_context *context = soft_context_of(qp);

	pthread_mutex_lock(&ibv_qp->mutex);
	pier_soft_lock(&context->engine);
	if (ibv_qp->qp_type == IBV_QPT_UD)
		pier_soft_drain_datagrams(qp);
	pier_soft_send_last_answers(qp);
	pier_soft_close_link(&qp->link);
	pier_soft_discard_stream(&qp->connection);
	pier_soft_detach_windows(&qp->reach);
	context->node.connections[ibv_qp->handle] = NULL;
	/* After its doorbell is collected, the engine does not know it any more. */
	pier_soft_collect_doorbells(&context->engine);
	pier_list_remove(&qp->end.work.active);
	pier_soft_unlock(&context->engine);
	pthread_mutex_unlock(&ibv_qp->mutex);
	pier_soft_retire_event_source(ibv_qp->context, &qp->events, &ibv_qp->mutex,
				      &ibv_qp->cond, &ibv_qp->events_completed);
	pier_soft_purge_cq((struct soft_cq *)ibv_qp->send_cq, qp);
	pier_soft_purge_cq((struct soft_cq *)ibv_qp->recv_cq, qp);
	if (qp->srq)
		pier_soft_drop_taken(qp->srq, &qp->taken);
	leave_objects(qp);
	free_qp(qp);
	return 0;
}
