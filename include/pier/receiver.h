/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_RECEIVER_H
#define PIER_RECEIVER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <pier/channel.h>
#include <pier/export.h>
#include <pier/mr.h>
#include <pier/transfer.h>

PIER_BEGIN_DECLS

/**
 * Receivers: the other end of a transfer that writes and announces its chunks
 * (PIER_TRANSFER_ANNOUNCE). For memory of devices, where bytes that have come are still
 * to be copied or flushed (<pier/sync.h>): it does so chunk by chunk, while later chunks
 * are on their way; and for whoever wants to know how much has come.
 *
 *	struct pier_receiver_rail rail = { .channel = channel, .mr = mr };
 *	struct pier_receiver_attr attr;
 *
 *	pier_receiver_attr_init(&attr);
 *	attr.rails = &rail;
 *	attr.rail_count = 1;
 *	attr.length = pier_mr_length(mr);
 *	pier_receiver_begin(&attr, &receiver);
 *	... tell the peer that it may begin ...
 *	while ((result = pier_receiver_wait(receiver, timeout_ms)) == 0)
 *		;
 *
 * Its rails are the other ends of the transfer's, each with the region here that the peer
 * writes to by it: each region may have a bounce buffer of its own, so what came
 * by a rail is copied from that of this rail.
 *
 * Receives: a receiver fills the receive queue of each channel with receives that have no
 * elements, one of which each chunk takes; it posts them again. So a channel must have a
 * receive queue of its own with no receives posted, and is not to be used for receiving
 * as long as the receiver lives. A sender that has more chunks in flight than there are
 * receives is told to wait and tries again (RNR NAK), as often as the rnr_retry_count of
 * its channel says: with 7 for ever, so that only its stall_ms ends it. The default of 6
 * times bridges some milliseconds, which copying can take longer than. So let
 * rnr_retry_count be 7 there, and max_recv_wr here not less than the transfer's window.
 *
 * A chunk that comes again, because a rail of the sender failed after it had arrived, is
 * counted once. What the peer announces is not believed: a number that cannot be ends
 * the receiver, and nothing is copied.
 *
 * Receives that are posted cannot be taken back from a queue pair. So those that are left
 * when a receiver has ended stay its own: pier_receiver_next() uses them for the next
 * transfer over the same channels, and pier_receiver_resume() to go on.
 * pier_receiver_destroy() stops the channels that have some, which are broken afterwards,
 * as by pier_channel_cancel(): to be reset, or destroyed.
 *
 * When a receiver has ended it touches its regions no more, but the peer may still write
 * to the memory, until its transfer has ended too; and where one of its channels failed,
 * until this end of that channel was reset or destroyed.
 *
 * Neither end is told how the other one ended, but by its channel; so:
 *
 *	the sender's	A device that hears that the peer's queue pair is gone
 *	rail failed	fails the rail here with -ECANCELED; others hear nothing, and
 *			stall_ms ends the receiver. Both are resumed, when the channel
 *			was reset at both ends.
 *	the sender's	Its channel works and nothing comes: stall_ms ends the
 *	copy failed,	receiver. Both are resumed as they are.
 *	or its request
 *	was refused
 *	a rail failed	The sender's ends with -ECANCELED, or with -ETIMEDOUT. Both
 *	here		are resumed, when the channel was reset at both ends.
 *	a copy failed	The receiver ends, and its channels work: while they have
 *	here		receives the sender goes on, and may end without an error.
 *			Begin anew at both ends.
 *
 * What the transfer counts the receiver has come to count as soon as it is resumed, but
 * for bytes whose copy failed, and for those whose completions the device here lost, or
 * made errors of though it had answered the peer, as when a completion queue overran. Of
 * these the receiver knows nothing: resumed, it waits for them until stall_ms is over,
 * and the transfer has ended. Then begin anew at both ends.
 *
 * So a transfer without an error says that all bytes came to what the NIC writes to, and
 * the receiver alone that they are there for device code: who has to know it at the other
 * end must be told by the caller.
 *
 * Until it has ended, its regions must stay, and until it is destroyed or goes on without
 * them its channels, but for those that failed. If it is to be resumed, regions of
 * channels that did not fail must stay until then.
 *
 * Threads: one thread at a time may use a receiver, and with it the channels of its
 * rails.
 *
 * Processes: in a child of fork(2), all that is not a plain question about a receiver of
 * the parent is -ECHILD (<pier/device.h>).
 */

struct pier_receiver;

/** Where bytes come. Byte 0 of the transfer is at the offset. */
struct pier_receiver_rail {
	/** Connected, or only prepared: then receives are there before the peer is. */
	struct pier_channel *channel;
	struct pier_mr *mr; /**< what the peer writes to, in the channel's PD */
	uint64_t offset;    /**< in the region, in bytes */
};

/** What is to come and how. Begin with pier_receiver_attr_init(). */
struct pier_receiver_attr {
	/** sizeof(struct pier_receiver_attr), so that fields can be added. */
	size_t size;
	const struct pier_receiver_rail *rails; /**< borrowed for the call */
	uint32_t rail_count;			/**< 1 to PIER_RAILS_MAX; all different */
	/**
	 * When no byte has come for so long that had not come before, the receiver ends.
	 * In milliseconds, more than 0; PIER_TIMEOUT_DEFAULT: the longest timeout_ms of
	 * the channels.
	 */
	int stall_ms;
	uint64_t length; /**< of the transfer, in bytes, up to 16 TiB */
	/** For all of it; PIER_TIMEOUT_DEFAULT: no limit but stall_ms. */
	int timeout_ms;
	int flags; /**< 0 */
};

/** Set every field to its default: no rails, no time limit but stall_ms. Cannot fail. */
static inline void pier_receiver_attr_init(struct pier_receiver_attr *attr)
{
	memset(attr, 0, sizeof(*attr));
	attr->size = sizeof(*attr);
	attr->stall_ms = PIER_TIMEOUT_DEFAULT;
	attr->timeout_ms = PIER_TIMEOUT_DEFAULT;
}

/**
 * Make a receiver, and post its receives. Then the peer may be told to begin. What cannot
 * be posted is how a rail fails.
 *
 * attr         borrowed, with all that it points to but regions and channels
 * ret_receiver  the caller's, to be given to pier_receiver_destroy()
 *
 * Errors: -EINVAL size, flags, stall_ms, timeout_ms, length or rail_count is not
 * possible, a channel is there twice, has a shared receive queue, a receive pool or none
 * of its own, or a region is in another protection domain; -EBUSY a channel has receives
 * posted; -ERANGE the bytes leave a region; -EPIPE a channel is broken; -ENOTCONN it
 * failed to connect; -ENOMEM.
 */
PIER_API int pier_receiver_begin(const struct pier_receiver_attr *attr,
				 struct pier_receiver **ret_receiver);

/**
 * Do what can be done now: take chunks that have come, copy what is to be copied, post
 * receives again. Some chunks of each rail, since others may come as fast as these are
 * copied; that there are more is what pier_channel_arm() tells. Copying takes its time;
 * nothing else is waited for, unless a rail fails: stopping its channel can take a
 * second.
 *
 * To drive a receiver from an event loop, do with it as with a transfer:
 * pier_transfer_progress().
 *
 * Returns 1 when all bytes have come, and are there for device code; 0 while it goes on.
 *
 * Errors: the receiver has ended, and it is said again at each call. -ECANCELED it was
 * cancelled; -ETIMEDOUT stall_ms or timeout_ms was over; -EBADMSG the peer announced what
 * cannot be; those of pier_mr_sync_for_device(), where bytes that came cannot be copied
 * (see pier_receiver_resume()), or where all have come and cannot be made visible: then
 * there is pier_reader_read_back(); or no rail is left, and this is how the last one
 * failed: struct pier_result's errors, those of pier_post_recv(), -EIO of ibv_poll_cq(3).
 */
PIER_API int pier_receiver_progress(struct pier_receiver *receiver);

/**
 * Wait until a receiver has ended, asleep where it takes long.
 *
 * timeout_ms  in milliseconds, from 0
 *
 * Returns 1 when all bytes have come; 0 when the time is up, which changes nothing.
 *
 * Errors: -EINVAL timeout_ms is negative; those of pier_receiver_progress().
 */
PIER_API int pier_receiver_wait(struct pier_receiver *receiver, int timeout_ms);

/**
 * End a receiver early: the next call that drives it takes no chunk any more, and its
 * error is -ECANCELED, unless all bytes had come.
 *
 * Errors: -EALREADY it has ended, and nothing was changed.
 */
PIER_API int pier_receiver_cancel(struct pier_receiver *receiver);

/**
 * Go on with a receiver that ended with an error: what has come stays counted, so the
 * peer resumes its transfer (pier_transfer_resume()). All times begin anew.
 *
 * rails, count  those that have not failed, which is what pier_receiver_query_rail()
 * tells, must be among them as they were: what came by them meanwhile is not lost
 *
 * Errors: -EBUSY it has not ended; -EALREADY all bytes have come; -EINVAL a rail is
 * missing; -EIO bytes that had come could not be copied, so the peer believes that they
 * are here and will not move them again: begin anew at both ends; -EBADMSG as
 * pier_receiver_progress(), of what came meanwhile; others as pier_receiver_begin(). The
 * receiver is then as before.
 */
PIER_API int pier_receiver_resume(struct pier_receiver *receiver,
				  const struct pier_receiver_rail *rails, uint32_t count);

/**
 * Make a receiver that has ended without an error the one of another transfer, or one
 * whose bytes have all come and could only not be flushed (pier_reader_read_back()): with
 * the receives that its channels still have. What comes from now on is of that transfer,
 * and so is what came since the receiver ended; so a peer may begin as soon as its last
 * transfer has ended. Where any rail of that failed, at either end, the channels of all
 * rails must have been reset at both ends before: what the failed one had brought may
 * have come again by any other, and would be counted.
 *
 * rails, count, length  as of struct pier_receiver_attr. A channel of before that is not
 *                       among them is stopped, as by pier_receiver_destroy().
 *
 * Errors: -EBUSY it has not ended, or ended with another error; others as
 * pier_receiver_begin(). The receiver is then as before.
 */
PIER_API int pier_receiver_next(struct pier_receiver *receiver,
				const struct pier_receiver_rail *rails, uint32_t count,
				uint64_t length);

/**
 * Give a receiver back, whether it has ended or not; NULL is fine. Channels that still
 * have receives of it are stopped, and are broken afterwards.
 *
 * Errors: -ECHILD.
 */
PIER_API int pier_receiver_destroy(struct pier_receiver *receiver);

/** How far a receiver is. */
struct pier_receiver_status {
	uint64_t length;	/**< of all, in bytes */
	uint64_t done;		/**< that have come and were copied, each counted once */
	uint32_t rails;		/**< how many */
	uint32_t working_rails; /**< that have not failed */
	uint32_t receives;	/**< posted, or taken and not looked at yet */
	int ended;		/**< not 0: it has, with or without an error */
	int error;		/**< 0, or what it ended with */
};

/**
 * Tell how far a receiver is. What is written to memory directly is there for device code
 * when the receiver has ended without an error; what is copied, as it is counted. Cannot
 * fail.
 */
PIER_API void pier_receiver_query(const struct pier_receiver *receiver,
				  struct pier_receiver_status *ret_status);

/**
 * Tell how a rail is, counted from 0 in the order in which they were given: `done` are
 * the bytes that it brought first, `in_flight` its receives.
 *
 * Errors: -ERANGE there is no such rail.
 */
PIER_API int pier_receiver_query_rail(const struct pier_receiver *receiver,
				      uint32_t index,
				      struct pier_rail_status *ret_status);

PIER_END_DECLS

#endif
