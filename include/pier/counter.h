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
 * Counters: how many writes of peers have arrived in a region, without a message
 * for each.
 *
 *	pier_counter_create(pd, &counter);
 *	pier_counter_bind(counter, mr);
 *	pier_counter_wait(counter, 1000, timeout_ms);
 *	... the bytes of 1000 writes are in the region ...
 *
 * A write counts once, when its last byte is in memory; one that failed does not
 * count. So what a count stands for can be read as soon as the count is seen.
 * A write that was split because the remote region has several parts arrives,
 * and counts, as several.
 *
 * There are two ways, of which a counter uses one at a time:
 *
 * - natively (pier_counter_bind()), where the device counts by itself
 *   (pier_device_attr.counters): peers just write, this end does nothing, and any
 *   thread may wait;
 * - by write with immediate (pier_counter_bind_imm()), with any device: peers use
 *   pier_channel_write_imm() with an agreed number, this end posts receives, and the
 *   channel counts as it collects completions.
 *
 * Values are of 64 bits, wrap to 0 and are compared as unsigned numbers.
 *
 * Lifetime: a counter keeps its protection domain, and a bound region and a bound
 * counter keep each other: pier_dereg_mr() and pier_counter_destroy() are -EBUSY.
 * Channels are not kept: see pier_counter_bind_imm().
 *
 * Threads: any thread may call any function, several of them at once, but a
 * counter that has channels bound belongs to the one thread that uses those
 * channels: other threads may only read it. Nobody may use a counter while it is
 * being destroyed.
 *
 * Processes: in a child of fork(2) every call but pier_counter_read() is -ECHILD for
 * a counter of the parent (<pier/device.h>).
 */

struct pier_counter;

/**
 * Make a counter of value 0.
 *
 * Errors: -ENOMEM.
 */
PIER_API int pier_counter_create(struct pier_pd *pd, struct pier_counter **ret_counter);

/**
 * Destroy a counter; NULL is fine.
 *
 * Errors: -EBUSY it is bound to a region, and nothing was changed.
 */
PIER_API int pier_counter_destroy(struct pier_counter *counter);

/**
 * Have the device count the writes of peers into a region, with or without
 * immediate data; not those of length 0. They count from now on, under the
 * region's own keys: those of its sub-regions are not meant.
 *
 * A counter may count for several regions, a region has one such counter.
 *
 * Errors: -EOPNOTSUPP the device cannot (no device of libibverbs can; soft0 does),
 * or the region is a memory window (pier_mr_is_window()); -EACCES peers may not write to
 * the region; -EINVAL the region is of another protection domain, or the counter has
 * channels bound; -EBUSY the region has a counter; -ENOMEM. Nothing is bound then.
 */
PIER_API int pier_counter_bind(struct pier_counter *counter, struct pier_mr *mr);

/**
 * Count the writes into a region that peers announce with a number: completions
 * PIER_OP_RECV_WRITE_IMM on a channel with exactly this immediate, also of
 * writes of length 0.
 *
 * mr         the region that these writes go to, which the caller and the peer
 *            have agreed on: completions do not tell. It stays registered.
 * channel    borrowed; whatever collects its completions counts, as pier_channel_poll(),
 *            pier_work_wait() and pier_counter_wait() do
 * immediate  in host order
 *
 * What has been collected already is not counted. Each such write uses up a
 * receive of pier_post_recv(), whose result is handed out as ever; where none is
 * posted, the peer's write waits for one or fails (see rnr_retry_count). On the
 * same channel other writes of the peer that were posted before are in memory too.
 *
 * One counter may be bound to several numbers, regions and channels. Destroying a
 * channel ends what was bound on it.
 *
 * Errors: -EACCES peers may not write to the region, or not through the channel
 * (pier_channel_attr.access); -EINVAL counter, region and channel are not of one
 * protection domain, or the counter is bound natively; -EBUSY the immediate is
 * counted on this channel already; -ENOMEM. Nothing is bound then.
 */
PIER_API int pier_counter_bind_imm(struct pier_counter *counter, struct pier_mr *mr,
				   struct pier_channel *channel, uint32_t immediate);

/**
 * End all that binds the counter to a region. The value stays as it is, and
 * nothing counts for this region afterwards.
 *
 * Errors: -ENOENT it is not bound to the region; others of the device, after
 * which it can only be unbound again.
 */
PIER_API int pier_counter_unbind(struct pier_counter *counter, struct pier_mr *mr);

/**
 * The value, without waiting; of a counter with channels bound: as of what was
 * collected. Cannot fail.
 */
PIER_API uint64_t pier_counter_read(const struct pier_counter *counter);

/**
 * Change the value: set another, which forgets what has arrived, or add to it,
 * which does not. Who waits for a value that is reached by this is woken.
 *
 * Errors: -ECHILD it is the parent's.
 */
PIER_API int pier_counter_set(struct pier_counter *counter, uint64_t value);
PIER_API int pier_counter_add(struct pier_counter *counter, uint64_t value);

/**
 * Wait until the value is `threshold` or more, asleep where it takes long. A
 * value that was that high only for a moment, before somebody lowered it, may be
 * missed.
 *
 * Of a counter with channels bound the calling thread must be the one that uses
 * them: it collects the completions of all of them meanwhile.
 *
 * timeout_ms  in milliseconds, 0 or more; 0: looks once
 *
 * Errors: -ETIMEDOUT the time was up, which changes and breaks nothing: wait
 * again, or do not; -EINVAL timeout_ms is negative (a counter has no default);
 * -EPIPE a channel that is bound is broken, and the sentence tells its first cause
 * (unbind or destroy it to wait for the others); -EIO and others of
 * ibv_poll_cq(3), ibv_req_notify_cq(3) and poll(2).
 */
PIER_API int pier_counter_wait(struct pier_counter *counter, uint64_t threshold,
			       int timeout_ms);

PIER_END_DECLS

#endif
