/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_SETUP_CONNECT_H
#define PIER_CHANNEL_SETUP_CONNECT_H

#include "channel/channel.h"

/* How many reads and atomics of the peer this end serves at once. */
uint8_t pier_served_reads(const struct pier_channel *channel);

/*
 * pier_channel_connect() with another deadline than the channel's own (core/deadline.h).
 */
int pier_connect_until(struct pier_channel *channel, const struct pier_endpoint *peer,
		       int64_t deadline);

/*
 * The same without waiting between attempts.
 *
 * pause_ms  0 for the first call; set when the call returns 1
 *
 * Returns 0; 1 the network has not resolved the peer's address yet: call again after
 * *pause_ms; or the error.
 */
int pier_connect_step(struct pier_channel *channel, const struct pier_endpoint *peer,
		      int64_t deadline, int *pause_ms);

/* The traffic class of the channel's packets: as requested, or the port's. */
uint8_t pier_traffic_class(const struct pier_channel *channel);

/* The same with another root of sysfs. */
uint8_t pier_traffic_class_in(const char *sysfs, const struct pier_channel *channel);

#endif
