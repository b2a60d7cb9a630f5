/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_RECEIVER_H
#define PIER_RECEIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <pier/channel.h>
#include <pier/export.h>
#include <pier/mr.h>
#include <pier/transfer.h>

PIER_BEGIN_DECLS

/**
 * Receivers: the receiving end of a transfer that writes and announces its chunks
 * (PIER_TRANSFER_ANNOUNCE). A receiver is for device memory, where arrived bytes must
 * still be copied or flushed (<pier/sync.h>): it does this chunk by chunk, while later
 * chunks are in flight. It also reports how much has arrived.
 *
 *	struct pier_receiver_rail rail = { .channel = channel, .mr = mr };
 *	struct pier_receiver_attr attr;
 *
 *	pier_receiver_attr_init(&attr);
 *	attr.rails = &rail;
 *	attr.rail_count = 1;
 *	attr.length = pier_mr_length(mr);
 *	pier_receiver_create(&attr, &receiver);
 *	... tell the peer that it may begin ...
 *	result = pier_receiver_wait(receiver, PIER_TIMEOUT_DEFAULT);
 *
 * The receiver's rails are the other ends of the transfer's rails. Each has the local
 * region that the peer writes to through it. Each region may have its own bounce
 * buffer, so the receiver copies the bytes that arrived on a rail from the bounce
 * buffer of that rail's region.
 *
 * Receives: a receiver fills the receive queue of each channel with receives without
 * elements. Each chunk consumes one, and the receiver posts it again. A channel must
 * therefore have its own receive queue without posted receives, and must not be used
 * for other receives while the receiver exists. If a sender has more chunks in flight
 * than there are receives, its NIC gets RNR NAKs and tries again, as often as
 * rnr_retry_count of its channel allows. With 7, the default, only stall_ms of the
 * sender ends the wait. Fewer retries can last less than a copy takes. Set max_recv_wr
 * here to at least the transfer's window.
 *
 * A chunk that arrives again, because a rail of the sender failed after it had been
 * delivered, is counted once. The receiver does not trust the peer's announcements: an
 * impossible number ends the receiver, and nothing is copied.
 *
 * With PIER_TRANSFER_DIGEST at both ends, the peer sends the digest of each chunk before
 * its announcement, which consumes one more receive. The receiver compares it with the
 * digest of the bytes here, after they were copied or flushed; without bounce buffers
 * also if the chunk has arrived before. If they differ, the receiver ends with -EBADMSG,
 * and cannot be resumed: the peer regards the bytes as delivered.
 *
 * Posted receives cannot be taken back from a queue pair. When a receiver has ended, it
 * keeps those that are left: pier_receiver_resume() uses them to continue, and
 * pier_receiver_next() for the next transfer over the same channels.
 * pier_receiver_destroy() stops the channels that have some left. These channels are
 * then broken, as after pier_channel_cancel(), and must be reset or destroyed.
 *
 * When a receiver has ended, it no longer accesses its regions. The peer may still
 * write to the memory until its transfer has ended, too. If one of the channels failed,
 * the peer may still write until this end of that channel has been reset or destroyed.
 *
 * Neither end is notified of how the other one ended; each can only observe its
 * channels:
 *
 *	the sender's	If the device notices that the peer's queue pair is gone, the
 *	rail failed	rail here fails with -ECANCELED; otherwise stall_ms ends the
 *			receiver. Reset the channel at both ends, and resume both.
 *	the sender's	Its channel works, but nothing arrives: stall_ms ends the
 *	copy failed,	receiver. Resume both ends; no reset is needed.
 *	or its request
 *	was refused
 *	a rail failed	The sender's rail fails with -ECANCELED or -EHOSTUNREACH.
 *	here		Reset the channel at both ends, and resume both.
 *	a copy failed	The receiver ends, and its channels work: the sender
 *	here		continues while they have receives, and may end without an
 *			error. Start again with a new receiver and a new transfer.
 *
 * A resumed receiver soon counts the same bytes as the transfer. There are two
 * exceptions: bytes whose copy failed, and bytes whose completions the local device
 * lost, or reported as errors after it had acknowledged the data to the peer, for
 * instance when a completion queue overran. The receiver cannot detect the second case:
 * after it is resumed, it waits for these bytes until stall_ms expires, while the
 * transfer has ended. Then start again at both ends.
 *
 * A transfer that ends without an error therefore means that all bytes have arrived in
 * the memory that the NIC writes to. Only the receiver determines that they are visible
 * to device code. If the other end must know this, the caller must tell it.
 *
 * The regions must stay valid until the receiver has ended. The channels, except those
 * that failed, must stay valid until the receiver is destroyed or continues without
 * them. If you want to resume the receiver, the regions of channels that did not fail
 * must stay valid until then.
 *
 * Threads: one thread at a time may use a receiver together with the channels of its
 * rails.
 *
 * Processes: in a child of fork(2), all functions except pier_receiver_query() and
 * pier_receiver_query_rail() fail with -ECHILD for a receiver of the parent
 * (<pier/device.h>).
 */

struct pier_receiver;

/**
 * A channel on which bytes arrive. The offset refers to byte 0 of the transfer. Frozen:
 * attributes have arrays of them.
 */
struct pier_receiver_rail {
	/**
	 * Connected, or only prepared: its receives are then posted before the peer
	 * connects.
	 */
	struct pier_channel *channel;
	struct pier_mr *mr; /**< the target of the peer's writes, in the channel's PD */
	uint64_t offset;    /**< in the region, in bytes */
};

/** The attributes of a receiver. Set them up with pier_receiver_attr_init(). */
struct pier_receiver_attr {
	/** sizeof(struct pier_receiver_attr), so that fields can be added. */
	size_t size;
	const struct pier_receiver_rail *rails; /**< borrowed for the call */
	uint32_t rail_count;			/**< 1 to PIER_RAILS_MAX; all different */
	/**
	 * The receiver ends if no new byte has arrived for this time; repeated chunks
	 * do not count. In milliseconds, more than 0; PIER_TIMEOUT_DEFAULT: the longest
	 * timeout_ms of the channels.
	 */
	int stall_ms;
	uint64_t length; /**< of the transfer, in bytes, up to 16 TiB */
	uint32_t flags;	 /**< 0, or PIER_TRANSFER_DIGEST, as at the other end */
	/**
	 * 0, or the bytes of the buffer of a stream (<pier/stream.h>), the same as at
	 * the other end. A stream has no `length`.
	 */
	uint64_t stream_size;
};

/** Set every field to its default: no rails. Cannot fail. */
static inline void pier_receiver_attr_init(struct pier_receiver_attr *attr)
{
	memset(attr, 0, sizeof(*attr));
	attr->size = sizeof(*attr);
	attr->stall_ms = PIER_TIMEOUT_DEFAULT;
}

/**
 * Create a receiver and post its receives. After that, the peer may be told to begin.
 * If a receive cannot be posted, its rail fails; this function does not.
 *
 * attr          borrowed for the call, with everything it points to except the regions
 *               and channels
 * ret_receiver  the receiver; give it to pier_receiver_destroy()
 *
 * Errors: -EINVAL size, flags, stall_ms, length, stream_size or rail_count is not
 * possible, a pointer of a rail is NULL, a channel appears twice, has a shared receive
 * queue, a receive pool or no receive queue of its own, or a region is in another
 * protection domain; -EBUSY a channel has receives posted; -ERANGE the bytes are not
 * inside a region; -EPIPE a channel is broken; -ENOTCONN a channel failed to connect;
 * -ELIBACC and -EOPNOTSUPP as for pier_transfer_create(), with digests; -ENOMEM.
 */
PIER_API int pier_receiver_create(const struct pier_receiver_attr *attr,
				  struct pier_receiver **ret_receiver);

/**
 * Drive a receiver: take chunks that have arrived, copy bytes if necessary, and post
 * receives again. Each call takes a bounded number of chunks from each rail, because
 * new chunks may arrive as fast as they are copied; pier_channel_arm() reports whether
 * more are left. Does not wait, except for copies. A failed rail's channel is stopped as
 * that of a transfer.
 *
 * To drive a receiver from an event loop, do the same as for a transfer: see
 * pier_transfer_progress().
 *
 * Returns 1 when all bytes have arrived and are visible to device code; 0 while the
 * receiver is in progress.
 *
 * Errors: the receiver has ended, and every later call returns the same error.
 * -ECANCELED it was cancelled; -EHOSTUNREACH nothing new arrived for stall_ms; -EBADMSG
 * the peer made an impossible announcement, or the digests of a chunk differ; those of
 * pier_mr_sync_for_device(), if arrived bytes cannot be copied (see
 * pier_receiver_resume()), or if all bytes have arrived and cannot be made visible: call
 * it again. Otherwise no rail is left, and the error is that of the last one: an error of
 * struct pier_result, those of pier_channel_post_recv(), -EIO of ibv_poll_cq(3).
 */
PIER_API int pier_receiver_progress(struct pier_receiver *receiver);

/**
 * Drive a receiver until it has ended, asleep during long waits. A timeout changes
 * nothing; to give the receiver up, call pier_receiver_cancel().
 *
 * timeout_ms  in milliseconds; 0: do not wait; PIER_TIMEOUT_DEFAULT: until it has ended,
 *             as it does when it stalls (stall_ms)
 *
 * Returns 1 when all bytes have arrived. Returns 0 if the receiver is in progress and
 * timeout_ms is 0, or if a stream has news for its caller (<pier/stream.h>).
 *
 * Errors: -ETIMEDOUT it did not end in time; -EINVAL timeout_ms is invalid; -EINTR
 * pier_interrupt_set(), and others of poll(2): it is still in progress. All others are
 * those of pier_receiver_progress(), with which the receiver has ended.
 */
PIER_API int pier_receiver_wait(struct pier_receiver *receiver, int timeout_ms);

/**
 * Cancel a receiver. The next call that drives it takes no more chunks, and returns
 * -ECANCELED unless all bytes had arrived.
 *
 * Errors: -EALREADY the receiver has ended; nothing was changed.
 */
PIER_API int pier_receiver_cancel(struct pier_receiver *receiver);

/**
 * Resume a receiver that ended with an error. Bytes that have arrived stay counted, so
 * the peer must resume its transfer (pier_transfer_resume()). All time limits start
 * again.
 *
 * rails, count  must include, unchanged, every rail that has not failed (see
 *               pier_receiver_query_rail()), so that chunks which arrived on it
 *               meanwhile are not lost
 *
 * Errors: -EBUSY the receiver has not ended; -EALREADY all bytes have arrived; -EINVAL
 * a rail is missing; -EIO bytes that had arrived could not be copied, or their digest was
 * another one or could not be computed; the peer regards them as delivered and will not
 * move them again, so start again at both ends; -EBADMSG
 * as for pier_receiver_progress(), for chunks that arrived meanwhile; others as for
 * pier_receiver_create(). The receiver is then unchanged.
 */
PIER_API int pier_receiver_resume(struct pier_receiver *receiver,
				  const struct pier_receiver_rail *rails, uint32_t count);

/**
 * Use a receiver for another transfer, with the receives that its channels still have.
 * The receiver must have ended without an error, or with all bytes arrived and only the
 * flush failed (pier_mr_sync_for_device()).
 *
 * Chunks that arrive from now on belong to the new transfer, and so do chunks that
 * arrived after the receiver ended. A peer may therefore begin as soon as its last
 * transfer has ended. If any rail of the last transfer failed, at either end, the
 * channels of all rails must first have been reset at both ends. Otherwise chunks that
 * the failed rail had delivered may arrive again on other rails and be counted for the
 * new transfer.
 *
 * rails, count, length  as in struct pier_receiver_attr. A previous channel that is not
 *                       among them is stopped, as by pier_receiver_destroy()
 *
 * Errors: -EBUSY the receiver has not ended, or ended with another error; -EINVAL it is
 * that of a stream; others as for pier_receiver_create(). The receiver is then unchanged.
 */
PIER_API int pier_receiver_next(struct pier_receiver *receiver,
				const struct pier_receiver_rail *rails, uint32_t count,
				uint64_t length);

/**
 * Destroy a receiver, whether it has ended or not. NULL is allowed. Channels that still
 * have receives of the receiver are stopped and are then broken.
 *
 * Errors: -ECHILD the receiver belongs to the parent process.
 */
PIER_API int pier_receiver_destroy(struct pier_receiver *receiver);

/** The progress of a receiver. */
struct pier_receiver_status {
	uint64_t length;	/**< of the transfer, in bytes */
	uint64_t done;		/**< bytes arrived and copied, each counted once */
	uint32_t rails;		/**< the number of rails */
	uint32_t working_rails; /**< rails that have not failed */
	uint32_t receives;	/**< posted, or consumed and not processed yet */
	bool ended;		/**< with or without an error */
	int error;		/**< 0, or the error with which it ended */
};

/**
 * Return the progress of a receiver. Bytes from bounce buffers are visible to device
 * code once they are counted. Other bytes are visible when the receiver has ended
 * without an error.
 *
 * ret_status  written up to `size` bytes
 * size        sizeof(*ret_status) in the caller
 *
 * Cannot fail.
 */
PIER_API void pier_receiver_query(const struct pier_receiver *receiver,
				  struct pier_receiver_status *ret_status, size_t size);

/**
 * Return the state of a rail. `done` is the number of bytes that arrived first on this
 * rail, and `in_flight` the number of its receives.
 *
 * index       from 0, in the order in which the rails were given
 * ret_status  written up to `size` bytes
 * size        sizeof(*ret_status) in the caller
 *
 * Errors: -ERANGE there is no such rail.
 */
PIER_API int pier_receiver_query_rail(const struct pier_receiver *receiver,
				      uint32_t index, struct pier_rail_status *ret_status,
				      size_t size);

PIER_END_DECLS

#endif
