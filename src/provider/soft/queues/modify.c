/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "modify.h"
#include "core/error.h"
#include "counter.h"
#include "cq.h"
#include "datagram.h"
#include "events.h"
#include "provider/soft/connect/connect.h"
#include "provider/soft/connect/node.h"
#include "provider/soft/engine.h"
#include "provider/soft/limits.h"
#include "provider/soft/link/attach.h"
#include "provider/soft/link/grant.h"
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

static void free_qp(struct soft_qp *qp)
{
	free(qp->sq.slots);
	free(qp->sq.sges);
	free(qp->sq.inline_data);
	free(qp->ud.destinations);
	if (qp->builder)
		pthread_mutex_destroy(&qp->builder->lock);
	free(qp->builder);
	pier_soft_free_recvs(&qp->rq.recvs);
	pthread_mutex_destroy(&qp->sq.lock);
	pthread_mutex_destroy(&qp->rq.lock);
	pthread_mutex_destroy(&qp->ibv.mutex);
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
	sends = allocate_sends(&qp->sq, &qp->init.cap);
	pthread_mutex_init(&qp->rq.lock, NULL);
	recvs = pier_soft_allocate_recvs(&qp->rq.recvs, qp->init.cap.max_recv_wr,
					 qp->init.cap.max_recv_sge);
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
static int take_number(struct soft_context *context, struct soft_qp *qp)
{
	int error;

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
		error = pier_soft_renew_secret(&qp->connection);
		if (error)
			return error;
		context->node.connections[index] = &qp->connection;
		context->next_qp = index + 1;
		return 0;
	}
	return pier_fail(ENOMEM, "soft0: all %d queue pairs are in use", SOFT_MAX_QP);
}

/* At the objects that the queue pair uses. more: 1, or -1 when it is destroyed. */
static void count_user(const struct soft_qp *qp, int more)
{
	atomic_fetch_add(&soft_pd(qp->ibv.pd)->users, (unsigned int)more);
	atomic_fetch_add(&((struct soft_cq *)qp->ibv.send_cq)->users, (unsigned int)more);
	atomic_fetch_add(&((struct soft_cq *)qp->ibv.recv_cq)->users, (unsigned int)more);
	if (qp->srq)
		atomic_fetch_add(&qp->srq->users, (unsigned int)more);
}

struct ibv_qp *pier_soft_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct soft_context *context = soft_context(pd->context);
	int error = check_init(pd, attr);
	struct soft_qp *qp;

	if (error)
		return pier_null_with(error);
	qp = allocate_qp(attr);
	if (!qp)
		return pier_null_with(-ENOMEM);
	qp->ibv.context = pd->context;
	qp->ibv.qp_context = attr->qp_context;
	qp->ibv.pd = pd;
	qp->ibv.send_cq = attr->send_cq;
	qp->ibv.recv_cq = attr->recv_cq;
	qp->ibv.srq = attr->srq;
	qp->ibv.qp_type = attr->qp_type;
	qp->ibv.state = IBV_QPS_RESET;
	/* The fields that the layers below use. */
	qp->end.work.engine = &context->engine;
	qp->end.pd = qp->reach.pd = pd;
	qp->end.attr = &qp->attr;
	qp->link.end = &qp->end;
	qp->connection.node = &context->node;
	qp->connection.end = &qp->end;
	qp->connection.link = &qp->link;
	pier_soft_lock(&context->engine);
	error = take_number(context, qp);
	pier_soft_unlock(&context->engine);
	if (error) {
		free_qp(qp);
		return pier_null_with(error);
	}
	count_user(qp, 1);
	return &qp->ibv;
}

static void detach_counters(struct soft_qp *qp)
{
	for (uint32_t i = 0; i < PIER_COUNTED_KINDS; i++) {
		if (qp->counters[i])
			atomic_fetch_sub(&qp->counters[i]->users, 1);
		qp->counters[i] = NULL;
	}
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
	detach_counters(qp);
	context->node.connections[ibv_qp->handle] = NULL;
	/* After its doorbell is collected, the engine does not know it any more. */
	pier_soft_collect_doorbells(&context->engine);
	pier_list_remove(&qp->end.work.active);
	pier_soft_unlock(&context->engine);
	pthread_mutex_unlock(&ibv_qp->mutex);
	pier_soft_retire_event_source(ibv_qp->context, &qp->events);
	pier_soft_purge_cq((struct soft_cq *)ibv_qp->send_cq, qp);
	pier_soft_purge_cq((struct soft_cq *)ibv_qp->recv_cq, qp);
	if (qp->srq)
		pier_soft_drop_taken(qp->srq, &qp->taken);
	count_user(qp, -1);
	free_qp(qp);
	return 0;
}

struct masks {
	int required, optional;
};

/*
 * The RC and UD rows of qp_state_table in ib_core of the kernel, which follow IBTA
 * 11.2.5.2, without path migration. An alternate path is kept, and never used. Any state
 * but RESET also goes to ERR, and any to RESET, with no attributes.
 */
static const struct {
	enum ibv_qp_state from, to;
	struct masks rc, ud;
} transitions[] = {
	{ IBV_QPS_RESET,
	  IBV_QPS_INIT,
	  { IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0 },
	  { IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, 0 } },
	{ IBV_QPS_INIT,
	  IBV_QPS_INIT,
	  { 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS },
	  { 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY } },
	{ IBV_QPS_INIT,
	  IBV_QPS_RTR,
	  { IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
	    IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_ALT_PATH },
	  { 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY } },
	{ IBV_QPS_RTR,
	  IBV_QPS_RTS,
	  { IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		    IBV_QP_MAX_QP_RD_ATOMIC,
	    IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER |
		    IBV_QP_ALT_PATH },
	  { IBV_QP_SQ_PSN, IBV_QP_CUR_STATE | IBV_QP_QKEY } },
	{ IBV_QPS_RTS,
	  IBV_QPS_RTS,
	  { 0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER |
		       IBV_QP_ALT_PATH },
	  { 0, IBV_QP_CUR_STATE | IBV_QP_QKEY } },
};

static const char *state_name(enum ibv_qp_state state)
{
	static const char *const names[] = {
		[IBV_QPS_RESET] = "RESET", [IBV_QPS_INIT] = "INIT", [IBV_QPS_RTR] = "RTR",
		[IBV_QPS_RTS] = "RTS",	   [IBV_QPS_SQD] = "SQD",   [IBV_QPS_SQE] = "SQE",
		[IBV_QPS_ERR] = "ERR",
	};

	return (unsigned int)state < sizeof(names) / sizeof(names[0]) ? names[state]
								      : "unknown";
}

#define MEMBER(bit, member)                              \
	bit, #bit, offsetof(struct ibv_qp_attr, member), \
		sizeof(((struct ibv_qp_attr *)0)->member)

/*
 * The attributes by their bits in a mask: where each is, and the values of those that
 * have a range. Without a size it is not kept.
 */
static const struct attribute {
	int bit;
	const char *bit_name;
	size_t offset, size;
	const char *name; /* NULL: no range */
	unsigned int least, most;
} attributes[] = {
	{ IBV_QP_CUR_STATE, "IBV_QP_CUR_STATE" },
	{ MEMBER(IBV_QP_ACCESS_FLAGS, qp_access_flags) },
	{ MEMBER(IBV_QP_PKEY_INDEX, pkey_index), "pkey_index", 0, 0 },
	{ MEMBER(IBV_QP_PORT, port_num), "port", 1, 1 },
	{ MEMBER(IBV_QP_AV, ah_attr) },
	{ MEMBER(IBV_QP_PATH_MTU, path_mtu), "path_mtu", IBV_MTU_256, IBV_MTU_4096 },
	{ MEMBER(IBV_QP_TIMEOUT, timeout), "timeout", 0, 31 },
	{ MEMBER(IBV_QP_RETRY_CNT, retry_cnt), "retry_cnt", 0, 7 },
	{ MEMBER(IBV_QP_RNR_RETRY, rnr_retry), "rnr_retry", 0, 7 },
	{ MEMBER(IBV_QP_RQ_PSN, rq_psn) },
	{ MEMBER(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic), "max_rd_atomic", 0,
	  SOFT_MAX_RD_ATOMIC },
	{ MEMBER(IBV_QP_ALT_PATH, alt_ah_attr) },
	{ MEMBER(IBV_QP_ALT_PATH, alt_pkey_index) },
	{ MEMBER(IBV_QP_ALT_PATH, alt_port_num) },
	{ MEMBER(IBV_QP_ALT_PATH, alt_timeout) },
	{ MEMBER(IBV_QP_MIN_RNR_TIMER, min_rnr_timer), "min_rnr_timer", 0, 31 },
	{ MEMBER(IBV_QP_SQ_PSN, sq_psn) },
	{ MEMBER(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic), "max_dest_rd_atomic", 0,
	  SOFT_MAX_RD_ATOMIC },
	{ IBV_QP_PATH_MIG_STATE, "IBV_QP_PATH_MIG_STATE" },
	{ IBV_QP_CAP, "IBV_QP_CAP" },
	{ MEMBER(IBV_QP_DEST_QPN, dest_qp_num), "dest_qp_num", 0, 0xffffff },
	{ MEMBER(IBV_QP_QKEY, qkey) },
};

enum {
	ATTRIBUTES = sizeof(attributes) / sizeof(attributes[0])
};

static const char *bit_name(int bit)
{
	for (size_t i = 0; i < ATTRIBUTES; i++) {
		if (attributes[i].bit & bit)
			return attributes[i].bit_name;
	}
	return "an unknown bit";
}

/* NULL: the queue pair cannot go there. */
static const struct masks *find_masks(enum ibv_qp_type type, enum ibv_qp_state from,
				      enum ibv_qp_state to)
{
	static const struct masks none;

	if (to == IBV_QPS_RESET || (to == IBV_QPS_ERR && from != IBV_QPS_RESET))
		return &none;
	for (size_t i = 0; i < sizeof(transitions) / sizeof(transitions[0]); i++) {
		if (transitions[i].from == from && transitions[i].to == to)
			return type == IBV_QPT_UD ? &transitions[i].ud
						  : &transitions[i].rc;
	}
	return NULL;
}

static int check_range(const struct ibv_qp_attr *attr, const struct attribute *attribute)
{
	const char *member = (const char *)attr + attribute->offset;
	unsigned int value = attribute->size == 1   ? *(const uint8_t *)member
			     : attribute->size == 2 ? *(const uint16_t *)member
						    : *(const uint32_t *)member;

	if (value >= attribute->least && value <= attribute->most)
		return 0;
	return pier_fail(EINVAL, "soft0: %s %u: must be %u to %u", attribute->name, value,
			 attribute->least, attribute->most);
}

static int check_values(const struct ibv_qp_attr *attr, int mask)
{
	/* Those of regions too, as with rxe (RXE_ACCESS_SUPPORTED_QP), without effect. */
	const unsigned int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				    IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
				    IBV_ACCESS_MW_BIND | IBV_ACCESS_ON_DEMAND |
				    IBV_ACCESS_OPTIONAL_RANGE;
	int error = 0;

	for (size_t i = 0; i < ATTRIBUTES && !error; i++) {
		if (attributes[i].name && (mask & attributes[i].bit))
			error = check_range(attr, &attributes[i]);
	}
	if (!error && (mask & IBV_QP_AV))
		error = pier_soft_check_path(&attr->ah_attr);
	if (!error && (mask & IBV_QP_ACCESS_FLAGS) && (attr->qp_access_flags & ~access))
		error = pier_fail(EINVAL, "soft0: qp_access_flags %#x are not known here",
				  attr->qp_access_flags);
	return error;
}

/* Checks mask and values for a change of state. 0 or -errno with a sentence. */
static int check_transition(enum ibv_qp_type type, enum ibv_qp_state from,
			    const struct ibv_qp_attr *attr, int mask,
			    enum ibv_qp_state *ret_to)
{
	enum ibv_qp_state to = mask & IBV_QP_STATE ? attr->qp_state : from;
	const struct masks *masks = find_masks(type, from, to);
	int missing, extra;

	*ret_to = to;
	if (!masks)
		return pier_fail(EINVAL, "soft0: a queue pair in %s cannot go to %s",
				 state_name(from), state_name(to));
	if ((mask & IBV_QP_CUR_STATE) && attr->cur_qp_state != from)
		return pier_fail(EINVAL,
				 "soft0: cur_qp_state is %s, but the queue pair "
				 "is in %s",
				 state_name(attr->cur_qp_state), state_name(from));
	missing = masks->required & ~mask;
	extra = mask & ~(masks->required | masks->optional | IBV_QP_STATE);
	if (missing)
		return pier_fail(EINVAL, "soft0: %s to %s needs %s (mask %#x)",
				 state_name(from), state_name(to), bit_name(missing),
				 mask);
	if (extra)
		return pier_fail(EINVAL, "soft0: %s to %s does not take %s (mask %#x)",
				 state_name(from), state_name(to), bit_name(extra), mask);
	return check_values(attr, mask);
}

static void store_attributes(struct ibv_qp_attr *to, const struct ibv_qp_attr *from,
			     int mask)
{
	for (size_t i = 0; i < ATTRIBUTES; i++) {
		const struct attribute *attribute = &attributes[i];

		if (mask & attribute->bit)
			memcpy((char *)to + attribute->offset,
			       (const char *)from + attribute->offset, attribute->size);
	}
	/* A packet's sequence number has 24 bits. */
	to->rq_psn &= 0xffffff;
	to->sq_psn &= 0xffffff;
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
		pier_soft_send_last_answers(qp);
		pier_soft_close_link(&qp->link);
		pier_soft_fail_qp(qp, IBV_WC_SUCCESS);
		return 0;
	}
	if (to == IBV_QPS_RTS && from == IBV_QPS_RTR)
		qp->sq.rnr_left = qp->attr.rnr_retry;
	pier_soft_set_state(qp, to);
	pier_soft_take_stream(qp);
	return 0;
}

/* The engine may have moved the queue pair to ERR while the peer was called. */
static int commit_state(struct soft_qp *qp, enum ibv_qp_state from, enum ibv_qp_state to,
			const struct ibv_qp_attr *attr, int mask)
{
	struct soft_context *context = soft_context_of(qp);
	int error = 0;

	pier_soft_lock(&context->engine);
	if (qp->ibv.state == from || to == IBV_QPS_ERR || to == IBV_QPS_RESET) {
		error = enter_state(qp, to, attr, mask);
	} else if (from == IBV_QPS_RTR && qp->lost_in_rtr) {
		/*
		 * Hardware does not notice in RTR that the peer is gone, so the step to
		 * RTS never fails for that reason. Here it succeeds too, and the queue
		 * pair stays in ERR, as if the peer had left right after the step.
		 */
		qp->lost_in_rtr = false;
		store_attributes(&qp->attr, attr, mask);
	} else {
		error = pier_fail(EINVAL, "soft0: QP %#x went to ERR in the meantime",
				  qp->ibv.qp_num);
	}
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
	error = check_transition(ibv_qp->qp_type, from, attr, mask, &to);
	if (!error && ibv_qp->qp_type == IBV_QPT_RC && from == IBV_QPS_INIT &&
	    to == IBV_QPS_RTR)
		error = pier_soft_connect(&qp->connection, attr);
	if (!error)
		error = commit_state(qp, from, to, attr, mask);
	pthread_mutex_unlock(&ibv_qp->mutex);
	return -error;
}

/* With the engine locked. Each kind has at most one counter. */
static int check_kinds(const struct soft_qp *qp, uint32_t kinds)
{
	if (qp->ibv.state != IBV_QPS_RESET && qp->ibv.state != IBV_QPS_INIT)
		return pier_fail(EINVAL,
				 "soft0: QP %#x is past INIT, too late to attach "
				 "a counter",
				 qp->ibv.qp_num);
	for (uint32_t i = 0; i < PIER_COUNTED_KINDS; i++) {
		if ((kinds & 1u << i) && qp->counters[i])
			return pier_fail(EBUSY,
					 "soft0: QP %#x has a counter for some of %#x",
					 qp->ibv.qp_num, kinds);
	}
	return 0;
}

static void attach_kinds(struct soft_qp *qp, struct soft_comp_counter *counter,
			 uint32_t kinds)
{
	for (uint32_t i = 0; i < PIER_COUNTED_KINDS; i++) {
		if (!(kinds & 1u << i))
			continue;
		qp->counters[i] = counter;
		atomic_fetch_add(&counter->users, 1);
	}
	qp->end.counted = qp->end.counted || (kinds & PIER_COUNTS_REMOTE_WRITE);
}

int pier_soft_attach_counter(struct ibv_qp *ibv_qp, struct pier_comp_counter *base,
			     const struct pier_comp_counter_attach_attr *attr)
{
	struct soft_qp *qp = (struct soft_qp *)ibv_qp;
	struct soft_context *context = soft_context_of(qp);
	int error;

	if (attr->comp_mask || attr->kinds == 0 || base->context != ibv_qp->context)
		return -pier_fail(EINVAL,
				  "soft0: attaching a counter: mask %#x, operations %#x, "
				  "or another context",
				  attr->comp_mask, attr->kinds);
	if (attr->kinds & ~(uint32_t)SOFT_COUNTED)
		return -pier_fail(EOPNOTSUPP,
				  "soft0: operations %#x cannot be counted, only %#x",
				  attr->kinds, SOFT_COUNTED);
	pthread_mutex_lock(&ibv_qp->mutex);
	pier_soft_lock(&context->engine);
	error = check_kinds(qp, attr->kinds);
	if (!error)
		attach_kinds(qp, soft_counter(base), attr->kinds);
	pier_soft_unlock(&context->engine);
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
