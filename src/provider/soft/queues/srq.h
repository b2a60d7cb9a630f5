/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_SRQ_H
#define PIER_SOFT_SRQ_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <infiniband/verbs.h>

#include "core/error.h"
#include "events.h"
#include "provider/soft/limits.h"

/* Shared receive queues, and what a queue pair has taken from one. */

struct soft_recv {
	uint64_t wr_id;
	int sge_count;
	struct ibv_sge *sges;
};

/* The slots of a queue of receives. Position p lies in slot p % depth. */
struct soft_recvs {
	struct soft_recv *slots;
	struct ibv_sge *sges;
	uint32_t depth, max_sge;
};

/*
 * Positions count as those of a queue pair do. But requests leave the queue in order and
 * complete in any order, so `freed` is a number and not a position. A request counts
 * until its completion has been polled, as with mlx5_free_srq_wqe() in poll_cq of mlx5;
 * its slot is free as soon as it is taken.
 */
struct soft_srq {
	struct ibv_srq ibv;
	pthread_mutex_t lock;
	struct soft_recvs recvs;
	uint32_t limit; /* reported when fewer requests are left; 0: not any more */
	uint64_t head, taken;
	_Atomic uint64_t freed;
	atomic_uint users; /* queue pairs */
	struct soft_event_source events;
};

/* The request that a queue pair is working on, which has left the queue. */
struct soft_taken {
	bool there;
	struct soft_recv recv;
	struct ibv_sge sges[SOFT_MAX_SGE];
};

/* False: no memory. */
bool pier_soft_allocate_recvs(struct soft_recvs *ret_recvs, uint32_t depth,
			      uint32_t max_sge);
void pier_soft_free_recvs(struct soft_recvs *recvs);

static inline struct soft_recv *pier_soft_recv_at(const struct soft_recvs *recvs,
						  uint64_t position)
{
	return &recvs->slots[position % recvs->depth];
}

/*
 * Stores a request at `position`, of `used` that the queue has. 0 or -errno with a
 * sentence, in which `queue` is "receive queue" or "shared receive queue".
 */
static inline int pier_soft_store_recv(const struct soft_recvs *recvs, uint64_t position,
				       uint64_t used, const struct ibv_recv_wr *wr,
				       const char *queue)
{
	struct soft_recv *recv;

	if (used >= recvs->depth)
		return pier_fail(ENOMEM, "soft0: the %s of %u requests is full", queue,
				 recvs->depth);
	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > recvs->max_sge)
		return pier_fail(EINVAL, "soft0: %d elements, the %s takes %u",
				 wr->num_sge, queue, recvs->max_sge);
	recv = pier_soft_recv_at(recvs, position);
	recv->wr_id = wr->wr_id;
	recv->sge_count = wr->num_sge;
	if (wr->num_sge > 0)
		memcpy(recv->sges, wr->sg_list, wr->num_sge * sizeof(*recv->sges));
	return 0;
}

struct ibv_srq *pier_soft_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr);
int pier_soft_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask);
int pier_soft_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *ret_attr);
int pier_soft_destroy_srq(struct ibv_srq *srq);
int pier_soft_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr,
			    struct ibv_recv_wr **bad_wr);
/* Takes the oldest request; false: there is none. With the engine locked. */
bool pier_soft_take_recv(struct soft_srq *srq, struct soft_taken *ret_taken);
/* Frees a request that was taken and will not complete. */
void pier_soft_drop_taken(struct soft_srq *srq, struct soft_taken *taken);

#endif
