/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_RECV_POOL_SLOTS_H
#define PIER_CHANNEL_RECV_POOL_SLOTS_H

#include "recv_pool.h"

/* Post the waiting slots as far as there is room. Returns 0 or the error of posting. */
int pier_pool_post(struct pier_recv_pool *pool);

/* Take a slot back from the device or the user. It is posted with the next batch. */
void pier_pool_put(struct pier_recv_pool *pool, struct pier_recv_slot *slot);

/*
 * Post receives of a channel with one element each, under one doorbell.
 *
 * ret_works   of the posted receives
 * ret_posted  their number: less than count if the queue is full, or with an error
 */
int pier_post_recvs(struct pier_channel *channel,
		    const struct pier_scatter *const *targets, uint32_t count,
		    struct pier_work *ret_works, uint32_t *ret_posted);

#endif
