/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_SETUP_TRAFFIC_CLASS_H
#define PIER_CHANNEL_SETUP_TRAFFIC_CLASS_H

#include "channel/channel.h"

/* The traffic class of the channel's packets: as requested, or the port's. */
uint8_t pier_traffic_class(const struct pier_channel *channel);

/* The same with another root of sysfs. */
uint8_t pier_traffic_class_in(const char *sysfs, const struct pier_channel *channel);

#endif
