/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_SETUP_PORT_H
#define PIER_CHANNEL_SETUP_PORT_H

#include "channel/channel.h"

/* Read the port's limits and address into the channel. */
int pier_query_channel_port(struct pier_channel *channel);

#endif
