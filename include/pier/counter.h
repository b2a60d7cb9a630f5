/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_COUNTER_H
#define PIER_COUNTER_H

#include <stdint.h>

#include <pier/channel.h>
#include <pier/device.h>
#include <pier/export.h>
#include <pier/mr.h>

PIER_BEGIN_DECLS

/**
 * Counters: count the writes of peers into a region, without a message for each.
 *
 *	pier_counter_create(pd, &counter);
 *	pier_counter_bind(counter, mr);
 *	pier_counter_wait(counter, 1000, timeout_ms);
 *	... the bytes of 1000 writes are in the region ...
 *
 * A write is counted once, when its last byte is in memory. A write that failed is not
 * counted. A reader that sees the new value therefore also sees the bytes of the writes
 * it counts. A write that was split, because the remote region has several parts, is
 * counted as several.
 *
 * A counter uses one of two ways at a time:
 *
 * - native (pier_counter_bind()): the device counts (pier_device_attr.counters). Peers
 *   use plain writes, this end does nothing, and any thread may wait.
 * - by write with immediate (pier_counter_bind_imm()), on any device: peers write with an
 *   agreed number (PIER_POST_IMMEDIATE), this end posts receives, and the channel
 *   counts as it collects completions.
 *
 * Completion counters of libibverbs (ibv_create_comp_cntr(3), rdma-core 65) are neither
 * way and are not used. They count the writes on a queue pair into all regions together,
 * keepalives and other writes of length 0 too. A queue pair that is connected cannot get
 * one, none can be detached, and their manual pages promise neither an event to wait for
 * nor that the bytes of a counted write are in memory.
 *
 * Values have 64 bits, wrap to 0 and are compared as unsigned numbers.
 *
 * Lifetime: a counter keeps its protection domain. A counter and a region that are
 * bound keep each other: pier_mr_dereg() and pier_counter_destroy() fail with -EBUSY.
 * Channels are not kept: see pier_counter_bind_imm().
 *
 * Threads: any thread may call any function, and several threads may do so at once. A
 * counter with channels bound, however, belongs to the one thread that uses those
 * channels; other threads may only read it. No thread may use a counter while it is
 * being destroyed.
 *
 * Processes: in a child of fork(2), every call except pier_counter_read() fails with
 * -ECHILD for a counter of the parent (<pier/device.h>).
 */

struct pier_counter;

/**
 * Create a counter with the value 0.
 *
 * Errors: -ENOMEM.
 */
PIER_API int pier_counter_create(struct pier_pd *pd, struct pier_counter **ret_counter);

/**
 * Destroy a counter; NULL is allowed.
 *
 * Errors: -EBUSY the counter is bound to a region, and nothing was changed.
 */
PIER_API int pier_counter_destroy(struct pier_counter *counter);

/**
 * Make the device count the writes of peers into a region. Writes with and without
 * immediate data count from now on, except those of length 0. Only writes under the
 * region's own keys count, not those under the keys of its sub-regions.
 *
 * A counter may count for several regions. A region can have one such counter.
 *
 * Errors: -EOPNOTSUPP the device cannot count the writes into a region (soft0 can; verbs
 * has no such counter), or the region is a memory window; -EACCES peers may not write to
 * the region; -EINVAL the region belongs to another protection domain, or the counter has
 * channels bound; -EBUSY the region has a counter; -ENOMEM. After an error nothing is
 * bound.
 */
PIER_API int pier_counter_bind(struct pier_counter *counter, struct pier_mr *mr);

/**
 * Count the writes into a region that carry a number as immediate data. These are the
 * completions PIER_OP_RECV_WRITE_IMM on a channel with exactly this immediate,
 * including those of writes of length 0.
 *
 * mr         the region that these writes go to, as agreed between the caller and the
 *            peer: completions do not contain it. It stays registered while bound
 * channel    borrowed. Every call that collects its completions counts:
 *            pier_channel_poll(), pier_work_wait(), pier_counter_wait() and so on
 * immediate  in host order
 *
 * Completions that were collected before are not counted. Each such write uses up a
 * receive of pier_channel_post_recv(), whose result is returned as usual. If none is
 * posted, the peer's write waits for one or fails (see rnr_retry_count). Other writes
 * that the peer posted earlier on the same channel are in memory too.
 *
 * One counter may be bound to several numbers, regions and channels. Destroying a
 * channel ends its bindings.
 *
 * Errors: -EACCES peers may not write to the region, or not through the channel
 * (pier_channel_attr.access); -EINVAL counter, region and channel do not belong to one
 * protection domain, or the counter is bound natively; -EBUSY the immediate is counted
 * on this channel already; -ENOMEM. After an error nothing is bound.
 */
PIER_API int pier_counter_bind_imm(struct pier_counter *counter, struct pier_mr *mr,
				   struct pier_channel *channel, uint32_t immediate);

/**
 * End all bindings of the counter to a region. The value stays, and writes into this
 * region no longer count.
 *
 * Errors: -ENOENT the counter is not bound to the region; others of the device, after
 * which the binding can only be unbound again.
 */
PIER_API int pier_counter_unbind(struct pier_counter *counter, struct pier_mr *mr);

/**
 * Return the value, without waiting. With channels bound, the value includes only
 * completions that were collected. Cannot fail.
 */
PIER_API uint64_t pier_counter_read(const struct pier_counter *counter);

/**
 * Add to the value, modulo 2^64, and wake threads that wait for a value reached by that.
 * No write goes uncounted meanwhile.
 *
 * Errors: -ECHILD the counter belongs to the parent process.
 */
PIER_API int pier_counter_add(struct pier_counter *counter, uint64_t value);

/**
 * Wait until the value is `threshold` or more. Sleeps if that takes long. The wait can
 * miss a value that was reached only briefly, before another thread lowered it.
 *
 * If the counter has channels bound, the calling thread must be the one that uses them:
 * the wait collects the completions of all of them.
 *
 * timeout_ms  in milliseconds; 0: check once; PIER_TIMEOUT_DEFAULT: 30 s
 *
 * Returns 1 if the value was reached, or 0 if it was not and timeout_ms is 0.
 *
 * Errors: -ETIMEDOUT the value was not reached in time; nothing is changed or broken,
 * and the wait can be repeated; -EINVAL timeout_ms is invalid; -EPIPE a bound channel is
 * broken, and the error message gives its first cause (unbind or destroy that channel to
 * wait for the others); -EINTR (<pier/waiting.h>); -EIO and others of ibv_poll_cq(3),
 * ibv_req_notify_cq(3) and poll(2).
 */
PIER_API int pier_counter_wait(struct pier_counter *counter, uint64_t threshold,
			       int timeout_ms);

PIER_END_DECLS

#endif
