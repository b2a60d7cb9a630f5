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
	uint64_t freed : 62;
	uint64_t shared : 1;
	uint64_t solicited : 1;
	uint64_t time; /* as pier_soft_now(), if the CQ has timestamps */
};

enum soft_armed {
	SOFT_UNARMED,
	SOFT_ARMED_SOLICITED,
	SOFT_ARMED_ANY
};

/* The completion that ibv_start_poll() or ibv_next_poll() took: poll.c. */
struct soft_polled {
	pthread_mutex_t lock; /* from ibv_start_poll() to ibv_end_poll() */
	struct ibv_wc wc;
	uint64_t time;
};

struct soft_cq {
	union { /* the second begins like the first */
		struct ibv_cq ibv;
		struct ibv_cq_ex ex;
	};
	pthread_mutex_t lock;
	struct soft_cqe *entries;
	uint32_t first, count, capacity;
	enum soft_armed armed;
	enum soft_armed announced; /* how it was armed, if arming queued the event */
	bool overrun;
	bool has_times;
	bool overwrites;      /* IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN */
	bool single_threaded; /* IBV_CREATE_CQ_ATTR_SINGLE_THREADED */
	struct soft_polled polled;
	atomic_uint users;
	struct soft_event_source events;
	/* Under the channel's lock. */
	struct pier_list event_link;
	unsigned int events_queued, events_unacknowledged;
};

static inline void pier_soft_free_slots(const struct soft_cqe *cqe)
{
	if (cqe->shared)
		atomic_fetch_add_explicit(cqe->tail, 1, memory_order_release);
	else
		atomic_store_explicit(cqe->tail, cqe->freed, memory_order_release);
}

/* Polls the oldest completion, or drops it. With the CQ locked. */
static inline void pier_soft_remove_cqe(struct soft_cq *cq)
{
	pier_soft_free_slots(&cq->entries[cq->first]);
	cq->first = cq->first + 1 == cq->capacity ? 0 : cq->first + 1;
	cq->count--;
}

struct ibv_cq *pier_soft_create_cq(struct ibv_context *context, int cqe, void *cq_context,
				   struct ibv_comp_channel *channel, int comp_vector);
int pier_soft_destroy_cq(struct ibv_cq *cq);

/*
 * As ibv_resize_cq(3). EINVAL: less than 1, more than the device has, or fewer than the
 * completions in the queue.
 */
int pier_soft_resize_cq(struct ibv_cq *cq, int cqe);

/* False when the CQ has just overrun; it drops all further completions. */
bool pier_soft_push_cqe(struct soft_cq *cq, const struct soft_cqe *cqe, bool solicited);

/*
 * With the CQ locked: queue an event if it is armed for a completion that is in it; and
 * take that event back, if nobody took it, when all completions have been polled.
 */
void pier_soft_announce_waiting(struct soft_cq *cq);
void pier_soft_withdraw_announced(struct soft_cq *cq);

/* Removes the completions of a queue pair. */
void pier_soft_purge_cq(struct soft_cq *cq, const struct soft_qp *qp);

/* The channels that carry the events of completion queues. */
struct ibv_comp_channel *pier_soft_create_comp_channel(struct ibv_context *context);
int pier_soft_destroy_comp_channel(struct ibv_comp_channel *channel);
int pier_soft_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **ret_cq,
			   void **ret_cq_context);
void pier_soft_ack_cq_events(struct ibv_cq *cq, unsigned int count);

#endif
