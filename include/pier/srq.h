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
 * Shared receive queues: receives that all channels of it take from, so that memory is
 * needed for what arrives and not for every peer that might send something.
 *
 *	pier_create_srq(pd, NULL, &srq);
 *	attr.srq = srq;                            a struct pier_channel_attr
 *	pier_channel_create(pd, &attr, &channel); and more of them
 *	pier_post_srq_recv(srq, &element, 1, context);
 *	pier_message_wait(channel, timeout_ms, &message);
 *
 * Such a channel has no receives of its own: pier_post_recv() and pier_channel_recv() are
 * -EINVAL. What arrives on it, a send or a write with immediate, takes the oldest receive
 * of the queue and becomes a message of that channel, with the context that the receive
 * was posted with. Messages of one channel are handed out in the order in which the peer
 * posted them; between channels there is no order. If there is no receive the sender is
 * retried as its rnr_retry_count says.
 *
 * A place of the queue is used from pier_post_srq_recv() until the message was handed
 * out, and for so long its regions are kept (pier_dereg_mr() is -EBUSY). So max_wr is
 * also the most that can have arrived and wait for somebody, on all channels together,
 * and each of them has a completion queue for max_send_wr and all of max_wr: none
 * overruns, whoever gets everything. That takes some 64 bytes of max_wr for every
 * channel, and is what limits max_wr (max_cqe of ibv_query_device(3)).
 *
 * A message longer than its receive breaks the channel, on both ends; the receive comes
 * back as a message with that error. The other channels go on.
 *
 * pier_channel_destroy() stops its channel first. Receives whose messages nobody took by
 * then are posted again, so the queue loses none of them. A receive that a message was
 * halfway into when its channel broke comes back with an error, where the device
 * completes it (soft0 does); rxe drops it without a word: its place, and the use of its
 * regions, then end with pier_destroy_srq().
 *
 * A channel of a shared queue has nothing outstanding that would be flushed when its
 * peer goes, so a wait that runs out of time asks the device for the state of the queue
 * pair: -EPIPE if it is that of an error.
 *
 * Threads: any thread may call pier_post_srq_recv(), whatever the others do, and the
 * channels of one queue may be used, made and destroyed by different threads at once:
 * each channel as always by one at a time. pier_destroy_srq() is for one thread, when the
 * others are done with the queue.
 *
 * Processes: in a child of fork(2) all calls are -ECHILD for a queue of the parent
 * (<pier/device.h>).
 */

struct pier_srq;

/** How a shared receive queue is made. Begin with pier_srq_attr_init(). */
struct pier_srq_attr {
	/** sizeof(struct pier_srq_attr), so that fields can be added. */
	size_t size;
	uint32_t max_wr;  /**< receives posted, or with messages nobody took yet */
	uint32_t max_sge; /**< elements in one receive */
};

/** Set every field to its default: 256 receives of one element. Cannot fail. */
static inline void pier_srq_attr_init(struct pier_srq_attr *attr)
{
	memset(attr, 0, sizeof(*attr));
	attr->size = sizeof(*attr);
	attr->max_wr = 256;
	attr->max_sge = 1;
}

/**
 * Make a shared receive queue, which channels of the same protection domain can have.
 *
 * attr  borrowed; NULL: the defaults, lowered to what the device can
 *
 * Errors: -EOPNOTSUPP the device has none (max_srq of ibv_query_device(3)); -EINVAL a
 * value out of range (the sentence names it, and the limit); -ENOMEM; others of
 * ibv_create_srq(3).
 */
PIER_API int pier_create_srq(struct pier_pd *pd, const struct pier_srq_attr *attr,
			     struct pier_srq **ret_srq);

/**
 * Destroy a shared receive queue, with what is posted on it; NULL is fine.
 *
 * Errors: -EBUSY channels have it, or it belongs to a receive pool; others of
 * ibv_destroy_srq(3).
 */
PIER_API int pier_destroy_srq(struct pier_srq *srq);

/**
 * Post a receive for whichever channel gets a message next.
 *
 * sg_list, num_sge  the elements, up to max_sge; borrowed for the call; 0 elements: for
 *                   empty messages and writes with immediate
 * context           comes back in the message
 *
 * Errors: -EINVAL too many elements; -EAGAIN max_wr receives are posted, or have messages
 * that nobody took; -EBUSY the queue belongs to a receive pool; others of
 * ibv_post_srq_recv(3).
 */
PIER_API int pier_post_srq_recv(struct pier_srq *srq, const struct pier_scatter *sg_list,
				int num_sge, void *context);

/**
 * How many receives are posted, or have messages that nobody took. Any thread; a number
 * that others change. 0 in a child of fork(2). Cannot fail.
 */
PIER_API uint32_t pier_srq_outstanding(struct pier_srq *srq);

/** What arrived on a channel of a shared receive queue. */
struct pier_message {
	struct pier_channel *channel;
	void *context; /**< of pier_post_srq_recv() */
	/**
	 * As of a receive. With an error there is no message, and the memory of the
	 * receive is the caller's again.
	 */
	struct pier_result result;
};

/**
 * The next message of a channel; does not wait.
 *
 * Returns 1 and writes the message; 0 and writes nothing while there is none. A receive
 * that failed is a message: 1, with the error in its result and the sentence in
 * pier_error_message(). On a channel that is broken, all that arrived before comes first.
 *
 * Errors: -EPIPE the channel is broken, and everything was handed out; -EINVAL the
 * channel has receives of its own; -EBUSY the messages belong to a receive pool; -EIO
 * ibv_poll_cq(3) failed.
 */
PIER_API int pier_message_poll(struct pier_channel *channel,
			       struct pier_message *ret_message);

/**
 * Wait for the next message, asleep where it takes long. When the time is up nothing is
 * stopped: there is just no message yet.
 *
 * Returns 0, or the receive's error (ret_message->result.error), the message being
 * written in both cases.
 * Errors: also -ETIMEDOUT; -EINVAL timeout_ms; those of pier_message_poll();
 * others of ibv_req_notify_cq(3) and poll(2). With these nothing is written. (-ETIMEDOUT
 * is no error that a receive can have.)
 */
PIER_API int pier_message_wait(struct pier_channel *channel, int timeout_ms,
			       struct pier_message *ret_message);

PIER_END_DECLS

#endif
