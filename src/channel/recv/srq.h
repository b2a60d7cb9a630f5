/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_RECV_SRQ_H
#define PIER_CHANNEL_RECV_SRQ_H

#include "srq_post.h"

/*
 * pier_create_srq() for a receive pool, which alone posts and destroys, or for the caller
 * (NULL); and pier_destroy_srq().
 */
int pier_make_srq(struct pier_pd *pd, const struct pier_srq_attr *attr,
		  struct pier_recv_pool *pool, struct pier_srq **ret_srq);
int pier_end_srq(struct pier_srq *srq);

/* A channel has it from now on, and no longer. */
void pier_join_srq(struct pier_channel *channel);
/*
 * The queue pair is stopped first, and what it completed is collected. What has arrived
 * and nobody took is posted again.
 */
void pier_leave_srq(struct pier_channel *channel);

/*
 * A wait has run out of time: a queue pair in the error state that has nothing to
 * complete is found by asking for it.
 */
void pier_notice_broken(struct pier_channel *channel);

#endif
