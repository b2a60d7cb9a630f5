/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_STOP_H
#define PIER_CHANNEL_STOP_H

#include "channel.h"

/*
 * Stop all outstanding requests, and return when none is left. The queue pair goes to the
 * error state and its completions are collected. If they do not come in time, it goes to
 * RESET, after which no completion comes, and the missing results are filled in.
 */
void pier_stop_channel(struct pier_channel *channel);

/* No completion will come any more: mark all outstanding requests as flushed. */
void pier_fill_in_flush(struct pier_channel *channel);

#endif
