/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SRQ_H
#define PIER_SRQ_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <pier/channel.h>
#include <pier/device.h>
#include <pier/element.h>
#include <pier/export.h>

PIER_BEGIN_DECLS

/**
 * Shared receive queues: receives shared by several channels. Memory is needed for
 * messages that arrive, not for every peer that might send one.
 *
 *	pier_srq_create(pd, NULL, &srq);
 *	attr.srq = srq;                            a struct pier_channel_attr
 *	pier_channel_create(pd, &attr, &channel);  and more of them
 *	pier_srq_post_recv(srq, &element, 1, context);
 *	pier_message_wait(channel, timeout_ms, &result);
 *
 * A channel with a shared receive queue has no receives of its own:
 * pier_channel_post_recv() and pier_channel_recv() fail with -EINVAL. A send or a write
 * with immediate data that arrives takes the oldest receive of the queue. It becomes a
 * message of its channel, with the context of that receive. Messages of one channel are
 * returned in the order in which the peer posted them; messages of different channels
 * have no defined order. If the queue has no receive, the sender retries according to its
 * rnr_retry_count.
 *
 * A receive occupies a place of the queue from pier_srq_post_recv() until its message
 * is returned. During that time it keeps its regions (pier_mr_dereg() fails with
 * -EBUSY). max_wr therefore also limits the messages that have arrived and were not
 * taken yet, on all channels together. Each channel has a completion queue for
 * max_send_wr and all of max_wr, so none overruns, however the messages are
 * distributed. This costs about 64 bytes per receive of max_wr for every channel, and
 * limits max_wr to what fits into a completion queue (max_cqe of ibv_query_device(3)).
 * Channels that also share a completion queue (<pier/cq.h>) need this room once for all
 * of them.
 *
 * A message longer than its receive breaks the channel at both ends. The receive comes
 * back as a message with that error. Other channels are not affected.
 *
 * pier_channel_destroy() stops its channel first. Receives whose messages were not
 * taken by then are posted again, so the queue loses none of them. If a channel breaks
 * while a message is arriving, the device may complete its receive with an error (soft0
 * does), or drop it silently (rxe does). A dropped receive keeps its place and its
 * regions until pier_srq_destroy().
 *
 * A channel with a shared receive queue may have nothing outstanding that would be
 * flushed when its peer goes away. A wait that times out therefore queries the state of
 * the queue pair, and fails with -EPIPE if it is the error state.
 *
 * Threads: any thread may call pier_srq_post_recv() at any time. Different threads may
 * create, use and destroy the channels of one queue at the same time; as always, one
 * thread at a time may use a channel. Only one thread may call pier_srq_destroy(),
 * after all others have finished with the queue.
 *
 * Processes: in a child of fork(2), every call fails with -ECHILD for a queue of the
 * parent (<pier/device.h>).
 */

struct pier_srq;

/**
 * The attributes of a new shared receive queue. Set them up with pier_srq_attr_init().
 */
struct pier_srq_attr {
	/** sizeof(struct pier_srq_attr), so that fields can be added. */
	size_t size;
	/**
	 * Receives posted or with a message not taken yet, at most. Unset: 256, clamped
	 * to the device's limit.
	 */
	uint32_t max_wr;
	uint32_t max_sge; /**< elements per receive, at most; unset: 1 */
};

/** Leave every member unset: PIER_UNSET. Cannot fail. */
static inline void pier_srq_attr_init(struct pier_srq_attr *attr)
{
	memset(attr, 0, sizeof(*attr));
	attr->size = sizeof(*attr);
	attr->max_wr = PIER_UNSET;
	attr->max_sge = PIER_UNSET;
}

/**
 * Create a shared receive queue for channels of the same protection domain.
 *
 * attr  borrowed; NULL: the defaults
 *
 * Errors: -EOPNOTSUPP the device has no shared receive queues (max_srq of
 * ibv_query_device(3)); -EINVAL a value is out of range (the error message names it and
 * the limit); -ENOMEM; others of ibv_create_srq(3).
 */
PIER_API int pier_srq_create(struct pier_pd *pd, const struct pier_srq_attr *attr,
			     struct pier_srq **ret_srq);

/**
 * Destroy a shared receive queue and the receives posted to it; NULL is allowed.
 *
 * Errors: -EBUSY channels use it, or it belongs to a receive pool; others of
 * ibv_destroy_srq(3).
 */
PIER_API int pier_srq_destroy(struct pier_srq *srq);

/**
 * Post a receive to the queue. The next message on any of its channels takes it.
 *
 * sg_list, num_sge  the elements, up to max_sge; borrowed for the call. 0 elements: a
 *                   receive for empty messages and writes with immediate data
 * context           any pointer; comes back in the result
 *
 * Errors: -EINVAL too many elements; -EAGAIN max_wr receives are posted or have a
 * message that was not taken; -EBUSY the queue belongs to a receive pool; -EOPNOTSUPP as
 * of pier_channel_post_recv(); others of ibv_post_srq_recv(3).
 */
PIER_API int pier_srq_post_recv(struct pier_srq *srq, const struct pier_scatter *sg_list,
				uint32_t num_sge, void *context);

/**
 * Take the next message of a channel with a shared receive queue, and wait for it. Sleeps
 * if that takes long. A timeout stops nothing: no message has arrived yet.
 *
 * timeout_ms  in milliseconds; 0: do not wait; PIER_TIMEOUT_DEFAULT: the channel's
 *
 * Returns 1 and writes the result of the receive, with its context. A failed receive
 * counts as a message: its result has the error, pier_error_message() describes it, no
 * message arrived, and the memory belongs to the caller again. On a broken channel, all
 * messages that arrived before are returned first. Returns 0 and writes nothing if there
 * is no message and timeout_ms is 0.
 *
 * Errors: -ETIMEDOUT no message arrived in time; -EINVAL timeout_ms is invalid, or the
 * channel has receives of its own; -EPIPE the channel is broken and all messages were
 * taken; -EBUSY the messages belong to a receive pool; -EINTR (<pier/waiting.h>); -EIO
 * ibv_poll_cq(3) failed; others of ibv_req_notify_cq(3) and poll(2).
 */
PIER_API int pier_message_wait(struct pier_channel *channel, int timeout_ms,
			       struct pier_result *ret_result);

PIER_END_DECLS

#endif
