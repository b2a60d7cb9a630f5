/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "srq.h"
#include "core/error.h"
#include "provider/soft/soft.h"

bool pier_soft_allocate_recvs(struct soft_recvs *ret_recvs, uint32_t depth,
			      uint32_t max_sge)
{
	struct soft_recv *slots = calloc((size_t)depth + 1, sizeof(*slots));
	struct ibv_sge *sges = calloc((size_t)depth * max_sge + 1, sizeof(*sges));

	if (!slots || !sges) {
		free(slots);
		free(sges);
		return false;
	}
	for (uint32_t i = 0; i < depth; i++)
		slots[i].sges = sges + (size_t)i * max_sge;
	*ret_recvs = (struct soft_recvs){ slots, sges, depth, max_sge };
	return true;
}

void pier_soft_free_recvs(struct soft_recvs *recvs)
{
	free(recvs->slots);
	free(recvs->sges);
}

/* srq_limit has no meaning here (ibv_create_srq(3)). */
struct ibv_srq *pier_soft_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	const uint32_t depth = attr->attr.max_wr, max_sge = attr->attr.max_sge;
	struct soft_srq *srq;

	if (depth < 1 || depth > SOFT_MAX_WR || max_sge > SOFT_MAX_SGE)
		return pier_null_with(pier_fail(
			EINVAL,
			"soft0: a shared receive queue of %u requests (1 to %d) with %u "
			"elements (to %d)",
			depth, SOFT_MAX_WR, max_sge, SOFT_MAX_SGE));
	srq = calloc(1, sizeof(*srq));
	if (!srq || !pier_soft_allocate_recvs(&srq->recvs, depth, max_sge)) {
		free(srq);
		return pier_null_with(-ENOMEM);
	}
	pthread_mutex_init(&srq->lock, NULL);
	pier_soft_init_event_source(&srq->events, &srq->ibv);
	srq->ibv.context = pd->context;
	srq->ibv.pd = pd;
	srq->ibv.srq_context = attr->srq_context;
	atomic_fetch_add(&soft_pd(pd)->users, 1);
	return &srq->ibv;
}

static void copy_recv(struct soft_recv *to, const struct soft_recv *from)
{
	to->wr_id = from->wr_id;
	to->sge_count = from->sge_count;
	memcpy(to->sges, from->sges, (size_t)from->sge_count * sizeof(*from->sges));
}

/* With the queue locked. Requests that are taken but not polled count too. */
static int resize_srq(struct soft_srq *srq, uint32_t depth)
{
	uint64_t used = srq->head - atomic_load(&srq->freed);
	struct soft_recvs recvs;

	if (depth < 1 || depth > SOFT_MAX_WR || depth < used || depth < srq->limit)
		return pier_fail(EINVAL,
				 "soft0: %u requests for a shared receive queue in which "
				 "%llu are outstanding; the limit is %d",
				 depth, (unsigned long long)used, SOFT_MAX_WR);
	if (!pier_soft_allocate_recvs(&recvs, depth, srq->recvs.max_sge))
		return -ENOMEM;
	for (uint64_t i = srq->taken; i != srq->head; i++)
		copy_recv(pier_soft_recv_at(&recvs, i),
			  pier_soft_recv_at(&srq->recvs, i));
	pier_soft_free_recvs(&srq->recvs);
	srq->recvs = recvs;
	return 0;
}

static int set_limit(struct soft_srq *srq, uint32_t limit)
{
	if (limit > srq->recvs.depth)
		return pier_fail(EINVAL,
				 "soft0: srq_limit %u: the shared receive queue has %u "
				 "requests",
				 limit, srq->recvs.depth);
	srq->limit = limit;
	return 0;
}

/* A limit of 0 ends the previous one. */
int pier_soft_modify_srq(struct ibv_srq *ibv_srq, struct ibv_srq_attr *attr, int mask)
{
	struct soft_srq *srq = (struct soft_srq *)ibv_srq;
	int error = 0;

	if (mask & ~(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT))
		return -pier_fail(EINVAL,
				  "soft0: attributes %#x of a shared receive "
				  "queue are not known here",
				  mask);
	pthread_mutex_lock(&srq->lock);
	if (mask & IBV_SRQ_MAX_WR)
		error = resize_srq(srq, attr->max_wr);
	if (!error && (mask & IBV_SRQ_LIMIT))
		error = set_limit(srq, attr->srq_limit);
	pthread_mutex_unlock(&srq->lock);
	return -error;
}

int pier_soft_query_srq(struct ibv_srq *ibv_srq, struct ibv_srq_attr *ret_attr)
{
	struct soft_srq *srq = (struct soft_srq *)ibv_srq;

	pthread_mutex_lock(&srq->lock);
	*ret_attr = (struct ibv_srq_attr){
		.max_wr = srq->recvs.depth,
		.max_sge = srq->recvs.max_sge,
		.srq_limit = srq->limit,
	};
	pthread_mutex_unlock(&srq->lock);
	return 0;
}

int pier_soft_destroy_srq(struct ibv_srq *ibv_srq)
{
	struct soft_srq *srq = (struct soft_srq *)ibv_srq;

	if (atomic_load(&srq->users) > 0)
		return -pier_fail(
			EBUSY, "soft0: queue pairs still use the shared receive queue");
	pier_soft_retire_event_source(ibv_srq->context, &srq->events);
	atomic_fetch_sub(&soft_pd(ibv_srq->pd)->users, 1);
	pier_soft_free_recvs(&srq->recvs);
	pthread_mutex_destroy(&srq->lock);
	free(srq);
	return 0;
}

/* No doorbell, as for a queue pair's own: senders try again after an RNR NAK. */
int pier_soft_post_srq_recv(struct ibv_srq *ibv_srq, struct ibv_recv_wr *wr,
			    struct ibv_recv_wr **bad_wr)
{
	struct soft_srq *srq = (struct soft_srq *)ibv_srq;
	int error = 0;

	pthread_mutex_lock(&srq->lock);
	for (; wr && !error; wr = error ? wr : wr->next) {
		error = pier_soft_store_recv(
			&srq->recvs, srq->head,
			srq->head -
				atomic_load_explicit(&srq->freed, memory_order_acquire),
			wr, "shared receive queue");
		srq->head += !error;
		if (error)
			*bad_wr = wr;
	}
	pthread_mutex_unlock(&srq->lock);
	return -error;
}

/* As get_srq_wqe() of rxe: the event also disarms the limit (ibv_modify_srq(3)). */
static void check_limit(struct soft_srq *srq)
{
	if (srq->head - srq->taken >= srq->limit)
		return;
	srq->limit = 0;
	pier_soft_report_event(srq->ibv.context, &srq->events,
			       IBV_EVENT_SRQ_LIMIT_REACHED);
}

bool pier_soft_take_recv(struct soft_srq *srq, struct soft_taken *ret_taken)
{
	bool there;

	pthread_mutex_lock(&srq->lock);
	there = srq->taken != srq->head;
	if (there) {
		ret_taken->recv.sges = ret_taken->sges;
		copy_recv(&ret_taken->recv, pier_soft_recv_at(&srq->recvs, srq->taken++));
		ret_taken->there = true;
		check_limit(srq);
	}
	pthread_mutex_unlock(&srq->lock);
	return there;
}

void pier_soft_drop_taken(struct soft_srq *srq, struct soft_taken *taken)
{
	if (!taken->there)
		return;
	taken->there = false;
	atomic_fetch_add_explicit(&srq->freed, 1, memory_order_release);
}
