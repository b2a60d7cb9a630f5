/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_WAITING_H
#define PIER_WAITING_H

#include <stdint.h>

#include <pier/channel.h>
#include <pier/export.h>

PIER_BEGIN_DECLS

/**
 * Choosing how a channel waits, cancelling everything that it waits for, and ending waits
 * early.
 *
 * The rules for threads and processes are those of <pier/channel.h>.
 */

/**
 * Set how all waits on the channel spend their time from now on.
 *
 * This covers pier_work_wait(), the blocking calls, the ends of scopes, and waits for
 * counters, receive pools, groups, transfers and receivers. A wait on several channels
 * polls for the longest time that one of them asks for. A thread that sleeps in its own
 * loop, in epoll(7) with pier_channel_fd(), is not affected.
 *
 * spin_us  for PIER_WAIT_ADAPTIVE: microseconds of polling, up to 1,000,000; 0: sleep
 *          at once
 *
 * Errors: -EINVAL waiting or spin_us is invalid.
 */
PIER_API int pier_channel_set_waiting(struct pier_channel *channel,
				      enum pier_waiting waiting, uint32_t spin_us);

/**
 * Cancel everything that is outstanding. The queue pair is driven to the error state,
 * and its completions are collected. On return nothing is in flight in either
 * direction, and all memory is safe to reuse. Verbs cannot cancel a single request.
 *
 * Handles stay valid. Requests that were outstanding end with -ECANCELED, unless they
 * completed at the last moment: those have their own result. The channel is broken from
 * then on: new requests are refused with -EPIPE, and the peer's requests fail.
 *
 * Never waits for the peer. A device that delivers no completions is given up to one
 * second and then reset. If the channel is broken already, its outstanding requests are
 * collected.
 *
 * Errors: only -ECHILD, in a child of fork(2).
 */
PIER_API int pier_channel_cancel(struct pier_channel *channel);

/**
 * Called by a wait. A result other than 0 ends the wait.
 *
 * context  the argument of pier_interrupt_set()
 */
typedef int pier_interrupt_check(void *context);

/**
 * Set the function that can end the waits of the calling thread, for instance because
 * the interpreter of another language has to run a signal handler.
 *
 * A wait that sleeps calls the function after each signal, and every 50 ms; a wait for a
 * counter of the device only every 50 ms. A wait that polls without sleeping
 * (PIER_WAIT_POLL) does not call it. If the function returns a
 * value other than 0, the wait fails with -EINTR, and has the same effect as a timeout:
 * it stops nothing, unless the call posted the request that it waited for. Waits for the
 * device, of at most a second, are not interrupted.
 *
 * This covers the waits of channels, groups, counters, receive pools, receivers,
 * transfers, event queues and started copies, and both handshakes.
 *
 * check    NULL: nothing ends a wait early, which is the default. It must not call any
 *          function with an object that the waiting call uses
 * context  any pointer
 *
 * Threads: each thread has its own setting. Cannot fail.
 */
PIER_API void pier_interrupt_set(pier_interrupt_check *check, void *context);

PIER_END_DECLS

#endif
