/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_CHANNEL_H
#define PIER_SOFT_CHANNEL_H

#include <pthread.h>
#include <stdbool.h>

#include <infiniband/verbs.h>

#include "core/list.h"

/* The channels that carry the events of completion queues. */

struct soft_cq;

struct soft_channel {
	struct ibv_comp_channel ibv;
	pthread_mutex_t lock;
	struct pier_list events; /* CQs with events; fd is readable iff not empty */
	unsigned int users;
};

struct ibv_comp_channel *pier_soft_create_comp_channel(struct ibv_context *context);
int pier_soft_destroy_comp_channel(struct ibv_comp_channel *channel);
int pier_soft_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **ret_cq,
			   void **ret_cq_context);
void pier_soft_ack_cq_events(struct ibv_cq *cq, unsigned int count);
void pier_soft_queue_event(struct soft_cq *cq);
/* Takes back one event; false if it has none that was not taken. */
bool pier_soft_withdraw_event(struct soft_cq *cq);
/* Drops events that were not taken, and waits until those taken are acknowledged. */
void pier_soft_retire_events(struct soft_cq *cq);

#endif
