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

/*
 * Break the channel for this reason, unless it is broken, and stop it: its memory is the
 * caller's again. Returns the error, with the reason as its sentence.
 */
int pier_stop_because(struct pier_channel *channel, int error, const char *format, ...)
	__attribute__((format(printf, 3, 4), cold));

/*
 * pier_stop_channel() without waiting: bring the queue pair to the error state, then
 * finish as soon as everything has completed, or when `late`.
 *
 * Returns the time from which it is late. pier_finish_stop() returns whether no request
 * is left.
 */
int64_t pier_begin_stop(struct pier_channel *channel);
bool pier_finish_stop(struct pier_channel *channel, bool late);

/* Wait until a stop that has begun is finished, or late. */
void pier_await_stop(struct pier_channel *channel, int64_t late_at);

/* No completion will come any more: mark all outstanding requests as flushed. */
void pier_fill_in_flush(struct pier_channel *channel);

#endif
