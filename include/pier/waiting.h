/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_WAITING_H
#define PIER_WAITING_H

#include <stdint.h>

#include <pier/channel.h>
#include <pier/export.h>

PIER_BEGIN_DECLS

/**
 * How a channel waits, and giving up on all that it waits for. Threads and processes are
 * as in <pier/channel.h>.
 */

/**
 * Set how all waits on the channel wait from now on: pier_work_wait(), the blocking
 * calls, pier_channel_wait_room(), the ends of scopes, and waits for counters, receive
 * pools, groups, transfers and receivers. A wait on several channels polls for as long as
 * the channel that polls longest.
 *
 * spin_us  of PIER_WAIT_ADAPTIVE: microseconds, up to 1,000,000; 0 sleeps at once
 *
 * A thread that sleeps elsewhere, in epoll(7) with pier_channel_fd(), is not affected.
 *
 * Errors: -EINVAL one of the values.
 */
PIER_API int pier_channel_set_waiting(struct pier_channel *channel,
				      enum pier_waiting waiting, uint32_t spin_us);

/**
 * Cancel everything that is outstanding: the queue pair is driven to the error state, and
 * its completions are collected. On return nothing is in flight, in either direction,
 * and all memory is safe to use again. Verbs can cancel no single request.
 *
 * Handles stay: those that were outstanding end with -ECANCELED, or as they ended where
 * they completed at the last moment. The channel is broken from then on: what is posted
 * is refused with -EPIPE, and the peer's requests fail.
 *
 * Never waits for the peer; a device that gives no completions is waited for up to a
 * second and then reset. Of a channel that is broken already, what is still outstanding
 * is collected. Fails in no other way than as all calls in a child of fork(2).
 */
PIER_API int pier_channel_cancel(struct pier_channel *channel);

PIER_END_DECLS

#endif
