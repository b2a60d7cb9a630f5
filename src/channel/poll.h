/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_POLL_H
#define PIER_CHANNEL_POLL_H

#include "channel.h"

/* pier_collect() for loops that poll: posts a keepalive when one is due. */
int pier_collect_while_idle(struct pier_channel *channel);

#endif
