/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_EXTRA_KEEPALIVE_H
#define PIER_CHANNEL_EXTRA_KEEPALIVE_H

#include "channel/channel.h"

/* An empty write now and then, to see whether the peer lives: <pier/recovery.h>. */

/* If it is time for that, post it. Reads the clock. */
void pier_look_after_peer(struct pier_channel *channel) __attribute__((cold));

/* The same, one time in many: for loops that do nothing else. */
void pier_look_after_peer_rarely(struct pier_channel *channel) __attribute__((cold));

static inline void pier_keep_alive(struct pier_channel *channel)
{
	if (__builtin_expect(channel->attr.keepalive_ms, 0))
		pier_look_after_peer(channel);
}

#endif
