/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_CQ_H
#define PIER_SOFT_CQ_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "core/list.h"

/* Completion queues and the channels that carry their events. */

struct soft_qp;

struct soft_channel {
	struct ibv_comp_channel ibv;
	pthread_mutex_t lock;
	struct pier_list events; /* CQs with events; fd is readable iff not empty */
	unsigned int users;
};

struct soft_cqe {
	struct ibv_wc wc;
	struct soft_qp *qp;
	/*
	 * Polling it frees the slots of this queue before this position; of a shared
	 * queue, where completions are in any order, one more of them.
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
	/* Under the channel's lock. */
	struct pier_list event_link;
	unsigned int events_queued, events_taken;
};

/* cq.c, channel.c */
struct ibv_comp_channel *pier_soft_create_comp_channel(struct ibv_context *context);
int pier_soft_destroy_comp_channel(struct ibv_comp_channel *channel);
int pier_soft_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **ret_cq,
			   void **ret_cq_context);
void pier_soft_ack_cq_events(struct ibv_cq *cq, unsigned int count);
void pier_soft_queue_event(struct soft_cq *cq);
/* Forgets the events nobody took; waits until those taken are acknowledged. */
void pier_soft_retire_events(struct soft_cq *cq);
struct ibv_cq *pier_soft_create_cq(struct ibv_context *context, int cqe, void *cq_context,
				   struct ibv_comp_channel *channel, int comp_vector);
int pier_soft_destroy_cq(struct ibv_cq *cq);
int pier_soft_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *ret_wc);
int pier_soft_req_notify_cq(struct ibv_cq *cq, int solicited_only);
/* False when the CQ has just overrun; it drops what comes from then on. */
bool pier_soft_push_cqe(struct soft_cq *cq, const struct soft_cqe *cqe, bool solicited);
void pier_soft_purge_cq(struct soft_cq *cq, const struct soft_qp *qp);

#endif
