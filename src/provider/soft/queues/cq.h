/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_CQ_H
#define PIER_SOFT_CQ_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "core/list.h"
#include "events.h"

/* Completion queues. */

struct soft_qp;

struct soft_cqe {
	struct ibv_wc wc;
	struct soft_qp *qp;
	/*
	 * Polling it frees the slots of the work queue before position `freed`. In a
	 * shared receive queue, which completes in any order, it frees one more slot.
	 */
	_Atomic uint64_t *tail;
	uint64_t freed;
	bool shared;
};

enum soft_armed {
	SOFT_UNARMED,
	SOFT_ARMED_SOLICITED,
	SOFT_ARMED_ANY
};

struct soft_cq {
	struct ibv_cq ibv;
	pthread_mutex_t lock;
	struct soft_cqe *ring;
	uint32_t first, count, capacity;
	enum soft_armed armed;
	bool overrun;
	atomic_uint users;
	struct soft_event_source events;
	/* Under the channel's lock. */
	struct pier_list event_link;
	unsigned int events_queued, events_taken;
};

static inline void pier_soft_free_slots(const struct soft_cqe *cqe)
{
	if (cqe->shared)
		atomic_fetch_add_explicit(cqe->tail, 1, memory_order_release);
	else
		atomic_store_explicit(cqe->tail, cqe->freed, memory_order_release);
}

struct ibv_cq *pier_soft_create_cq(struct ibv_context *context, int cqe, void *cq_context,
				   struct ibv_comp_channel *channel, int comp_vector);
int pier_soft_destroy_cq(struct ibv_cq *cq);
/* False when the CQ has just overrun; it drops all further completions. */
bool pier_soft_push_cqe(struct soft_cq *cq, const struct soft_cqe *cqe, bool solicited);
/* Removes the completions of a queue pair. */
void pier_soft_purge_cq(struct soft_cq *cq, const struct soft_qp *qp);

#endif
