/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_KEEPALIVE_H
#define PIER_CHANNEL_KEEPALIVE_H

#include "channel/channel.h"

/* Empty writes at intervals that detect a dead peer: <pier/recovery.h>. */

/*
 * Post a keepalive if one is due, on any channel of a shared completion queue. If that
 * fails, stop the channel, without waiting: a later check finishes the stop. Reads the
 * clock.
 *
 * Returns how many channels have been stopped, so that their requests have results.
 */
int pier_keepalive_check(struct pier_channel *channel) __attribute__((cold));

/* Likewise, but only at every 64th call: for polling loops. */
void pier_keepalive_check_rarely(struct pier_channel *channel) __attribute__((cold));

/* Likewise for the channels of a queue, of which some have keepalive_ms. */
int pier_keepalive_check_members(struct pier_cq *cq) __attribute__((cold));

/* pier_collect() for loops that poll: posts a keepalive when one is due. */
int pier_collect_while_idle(struct pier_channel *channel);

static inline int pier_keep_alive(struct pier_channel *channel)
{
	return __builtin_expect(channel->attr.keepalive_ms || channel->attr.cq, 0)
		       ? pier_keepalive_check(channel)
		       : 0;
}

#endif
