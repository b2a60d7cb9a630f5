/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_RECV_SRQ_H
#define PIER_CHANNEL_RECV_SRQ_H

#include "srq_post.h"

/*
 * pier_srq_create() and pier_srq_destroy(), for a receive pool or for the caller
 * (NULL). Only a pool posts to and destroys its queue.
 */
int pier_make_srq(struct pier_pd *pd, const struct pier_srq_attr *attr,
		  struct pier_recv_pool *pool, struct pier_srq **ret_srq);
int pier_end_srq(struct pier_srq *srq);

/* Attach a channel to its shared receive queue, and detach it. */
void pier_join_srq(struct pier_channel *channel);
/*
 * Stops the queue pair, collects its completions, and posts the receives of messages
 * that nobody took again.
 */
void pier_leave_srq(struct pier_channel *channel);

/*
 * After a wait has timed out: a queue pair may be in the error state without any
 * completion, so ask the device.
 */
void pier_find_broken_qp(struct pier_channel *channel);

#endif
