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

/* The traffic class of the channel's packets: as requested, or the port's. */
uint8_t pier_traffic_class(const struct pier_channel *channel);

/* The same with another root of sysfs. */
uint8_t pier_traffic_class_in(const char *sysfs, const struct pier_channel *channel);

#endif
