/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CQ_H
#define PIER_CQ_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <pier/channel.h>
#include <pier/device.h>
#include <pier/export.h>

PIER_BEGIN_DECLS

/**
 * Shared completion queues: one completion queue and one fd for many channels.
 *
 *	pier_cq_create(pd, NULL, &cq);
 *	attr.cq = cq;                              a struct pier_channel_attr
 *	attr.context = peer;                       any pointer
 *	pier_channel_create(pd, &attr, &channel);  and more of them
 *
 *	for (;;) {
 *		if (pier_cq_arm(cq) == 0)          the fd is pier_cq_fd(cq)
 *			epoll_wait(epoll, events, 1, pier_cq_next_ms(cq));
 *		count = pier_cq_poll(cq, ready, 16);
 *		for (int i = 0; i < count; i++)
 *			serve(pier_channel_context(ready[i]));
 *	}
 *
 * By default a channel has a completion queue, a completion channel and an fd of its
 * own. A program with thousands of channels then needs thousands of fds, and has to
 * poll each channel. With a shared queue it needs one fd, and pier_cq_poll() returns
 * the channels that have something new. All other calls work as on any channel: each
 * completion goes to its own channel, whichever call polled it.
 *
 * The depth of the queue is a budget. A channel reserves an entry for each request that
 * it can have outstanding: max_send_wr + max_recv_wr, and one more with keepalive_ms.
 * Channels with the same shared receive queue (<pier/srq.h>) reserve its max_wr once
 * for all of them. A channel that does not fit is refused with -ENOSPC, so the queue
 * cannot overrun.
 *
 * An error of one channel affects no other channel. When a channel is destroyed or
 * reset, its completions leave the queue. Destroying it also releases its reservation.
 *
 * pier_channel_fd(), pier_channel_arm() and the waits of such a channel use the shared
 * queue. An fd can be in an epoll set only once, so add pier_cq_fd() instead of the fds
 * of channels. A call for one channel collects the completions of all. After arming,
 * check every request that the thread waits for, or call pier_cq_poll().
 *
 * pier_cq_poll() sends the keepalives that are due on any channel
 * (pier_channel_attr.keepalive_ms), and so do the calls and waits of a single channel.
 * pier_cq_next_ms() and the pier_channel_next_ms() of each channel return when. Not
 * every completion is timed, so a dead peer may be noticed keepalive_ms later.
 *
 * Lifetime: a completion queue keeps its protection domain. Its channels may be in any
 * protection domain of the same device.
 *
 * Threads: one thread at a time may use a completion queue and all of its channels,
 * including to create and to destroy them. A shared completion queue belongs to one
 * thread, as a channel does.
 *
 * Processes: in a child of fork(2), every call except pier_cq_fd() and
 * pier_cq_next_ms() fails with -ECHILD for a queue of the parent (<pier/device.h>).
 */

struct pier_cq;

/**
 * The attributes of a new shared completion queue. Set them up with pier_cq_attr_init().
 */
struct pier_cq_attr {
	/** sizeof(struct pier_cq_attr), so that fields can be added. */
	size_t size;
	/**
	 * Entries, at least; up to max_cqe of ibv_query_device(3). Unset: 1024, clamped
	 * to that limit.
	 */
	uint32_t depth;
	/**
	 * Completion vector, which selects the interrupt; 0 to num_comp_vectors - 1.
	 * Unset: pier chooses.
	 */
	uint32_t comp_vector;
};

/** Leave every member unset: PIER_UNSET. Cannot fail. */
static inline void pier_cq_attr_init(struct pier_cq_attr *attr)
{
	memset(attr, 0, sizeof(*attr));
	attr->size = sizeof(*attr);
	attr->depth = PIER_UNSET;
	attr->comp_vector = PIER_UNSET;
}

/**
 * Create a completion queue that channels can share: pier_channel_attr.cq.
 *
 * attr  borrowed; NULL: the defaults
 *
 * Errors: -EINVAL depth or comp_vector is out of range (the error message gives the
 * limit); -ENOMEM; others of ibv_create_comp_channel(3) and ibv_create_cq(3).
 */
PIER_API int pier_cq_create(struct pier_pd *pd, const struct pier_cq_attr *attr,
			    struct pier_cq **ret_cq);

/**
 * Destroy a shared completion queue; NULL is allowed.
 *
 * Errors: -EBUSY channels use it, or it belongs to a group; others of
 * ibv_destroy_cq(3).
 */
PIER_API int pier_cq_destroy(struct pier_cq *cq);

/**
 * Collect the completions of all channels, and return channels that have new ones,
 * without waiting.
 *
 * max  of channels to return, at least 1; the others are returned by the next call
 *
 * A channel is returned once for all of its new completions: results that
 * pier_work_poll() fetches, messages (pier_message_wait()), or room in its queues. It
 * is returned again after further completions, and behind all channels that wait to be
 * returned, so a busy channel does not hide others. It may have nothing new if another
 * call has fetched the result in the meantime.
 *
 * Returns the number of channels written to ret_channels, or 0.
 *
 * Errors: -EINVAL max is less than 1; -EIO ibv_poll_cq(3) failed.
 */
PIER_API int pier_cq_poll(struct pier_cq *cq, struct pier_channel **ret_channels,
			  uint32_t max);

/**
 * Return an fd for poll(2) and epoll(7). After pier_cq_arm(), it becomes readable at
 * the next completion on any channel that the call did not collect. The queue owns the
 * fd: do not read or close it. Cannot fail.
 */
PIER_API int pier_cq_fd(const struct pier_cq *cq);

/**
 * Make pier_cq_fd() readable at the next completion, and clear its current readiness.
 *
 * Completions that are already present are collected first, so no wake-up is lost.
 *
 * Returns 1 if pier_cq_poll() has channels to return: call it before sleeping. Returns
 * 0 if there are none.
 *
 * Errors: those of ibv_req_notify_cq(3); -EIO ibv_poll_cq(3) failed.
 */
PIER_API int pier_cq_arm(struct pier_cq *cq);

/**
 * Return how long a thread may sleep before the keepalive of any channel may be due
 * (<pier/recovery.h>).
 *
 * Returns the milliseconds after which pier_cq_poll() must be called; or -1 if no channel
 * has keepalive_ms, which poll(2) and epoll_wait(2) take as an infinite timeout. Cannot
 * fail.
 */
PIER_API int pier_cq_next_ms(const struct pier_cq *cq);

PIER_END_DECLS

#endif
