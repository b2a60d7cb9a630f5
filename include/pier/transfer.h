/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TRANSFER_H
#define PIER_TRANSFER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <pier/channel.h>
#include <pier/export.h>
#include <pier/mr.h>
#include <pier/remote.h>

PIER_BEGIN_DECLS

/**
 * Transfers: any number of bytes from memory here to memory of a peer, or from there
 * to here, in chunks, over one channel or several.
 *
 *	struct pier_rail rail = {
 *		.channel = channel, .mr = mr, .parts = parts, .count = count,
 *	};
 *	struct pier_transfer_attr attr;
 *
 *	pier_transfer_attr_init(&attr);
 *	attr.rails = &rail;
 *	attr.rail_count = 1;
 *	attr.length = pier_mr_length(mr);
 *	error = pier_transfer_run(&attr);
 *
 * Each channel is a rail, with a local region and a remote vector of its own for the
 * same bytes: other devices have other keys for them. A rail that has completed a chunk
 * takes the next one, so a fast rail moves more than a slow one. A chunk is one
 * request: it ends also at the end of a remote part, after as many elements as the
 * channel takes, and with the port's max_msg_size.
 *
 * Chunks of one rail arrive in order, those of several in any. A chunk whose request
 * failed may have arrived, in part or as a whole, and is moved again: so the source has
 * to stay as it is, and nobody may use the target, until the transfer has ended. Moving
 * a chunk twice does no harm, since it is the same bytes to the same place.
 *
 * When a rail fails, what it had not completed is moved by the others. When none is
 * left, the transfer ends with an error, and what arrived is not forgotten:
 * pier_transfer_resume() goes on with other rails, or with the same ones after their
 * channels were brought back (pier_channel_reset()). A rail that failed because a request
 * was refused, or a copy, has a channel that works as before. Of a write there is one
 * thing to know: packets of a channel that failed here can still be on their way. They
 * carry the bytes that the transfer moves again; but a peer that uses its memory for
 * something else then should first have destroyed or reset its end of that channel.
 *
 * When a transfer has ended, with or without an error, nothing of it is in flight, and
 * it touches neither its channels nor its regions any more. Until then they must stay.
 *
 * Memory of devices: what pier_mr_sync_for_nic() and pier_mr_sync_for_device() are for
 * (<pier/sync.h>) is done for this end's memory. If a region has a bounce buffer, the
 *bytes of a chunk are copied just before it is posted, or when it has come, while the NIC
 *has others in flight; what was written to memory directly is flushed once, when all has
 *come. So what is read is there for device code when the transfer has ended without an
 *error, and not before. A copy that fails is how its rail fails. The peer looks after its
 *own memory: with a receiver (<pier/receiver.h>), or with these two calls.
 *
 * Threads: one thread at a time may use a transfer and, until it has ended, the channels
 * of its rails, on which the same thread may have other requests. Different transfers
 * on different channels are independent.
 *
 * Processes: in a child of fork(2), all that is not a plain question about a transfer of
 * the parent is -ECHILD (<pier/device.h>).
 */

struct pier_transfer;

/** One way for the bytes. Byte 0 of the transfer is at both offsets. */
struct pier_rail {
	struct pier_channel *channel; /**< connected */
	struct pier_mr *mr;	      /**< the memory here, in the channel's PD */
	uint64_t offset;	      /**< in the region, in bytes */
	/** The memory of the peer, for this channel: borrowed for the call. */
	const struct pier_remote *parts;
	uint32_t count;		/**< of parts */
	uint64_t remote_offset; /**< in the remote vector, in bytes */
};

/** How many rails a transfer can have. */
#define PIER_RAILS_MAX 64

/** Which way the bytes go. */
enum pier_transfer_direction {
	PIER_TRANSFER_WRITE = 1, /**< from here to the peer */
	PIER_TRANSFER_READ = 2,	 /**< from the peer to here */
};

/** What pier_transfer_attr.flags may have, ored. */
enum pier_transfer_flags {
	/** The first rail that fails ends the transfer; the others do not take over. */
	PIER_TRANSFER_FAIL_FAST = 1,
	/**
	 * When all bytes have arrived, a write with immediate data and without bytes
	 * tells the peer, who needs a receive on each rail: the first rail that lives is
	 * taken, and should it fail just then, another. So the peer may be told more
	 * than once. What it is told of is all that came through the same device of its;
	 * where its ends of the rails are on several devices, tell it by
	 * pier_post_write_imm() on each.
	 */
	PIER_TRANSFER_NOTIFY = 2,
	/**
	 * Each chunk tells the peer that it has come, who needs a receive for each on its
	 * rail, as a receiver has them (<pier/receiver.h>): it is written with immediate
	 * data, its offset in the transfer in blocks of 4 KiB. So `chunk` must be a
	 * multiple of that, and all remote parts must end on one but the last; transfers
	 * have up to 16 TiB. Not with reading, nor with PIER_TRANSFER_NOTIFY.
	 */
	PIER_TRANSFER_ANNOUNCE = 4,
};

/** What is to be moved and how. Begin with pier_transfer_attr_init(). */
struct pier_transfer_attr {
	/** sizeof(struct pier_transfer_attr), so that fields can be added. */
	size_t size;
	enum pier_transfer_direction direction;
	uint32_t rail_count;	       /**< 1 to PIER_RAILS_MAX */
	const struct pier_rail *rails; /**< borrowed for the call */
	uint64_t length;	       /**< in bytes; 0: nothing is moved */
	/** The most bytes of a chunk; 0: 1 MiB. docs/design.md says why. */
	uint32_t chunk;
	/**
	 * Chunks in flight on each rail, at most as many as its send queue has places.
	 * 0: as many as half of the send queue has, 16 at most: the rest is for other
	 * requests on the channel. When these fill the queue, chunks wait.
	 */
	uint32_t window;
	/**
	 * A rail on which no chunk completes for so long has failed: its channel is
	 * broken then, as by pier_work_wait(). Also one whose send queue was full of
	 * other requests for so long; that channel is left alone. In milliseconds, more
	 * than 0; PIER_TIMEOUT_DEFAULT: the timeout_ms of each channel.
	 */
	int stall_ms;
	/**
	 * For all of it, in milliseconds, more than 0; PIER_TIMEOUT_DEFAULT: no limit
	 * but stall_ms. When the time is up no chunk is posted any more, and those in
	 * flight are waited for, on each rail while it does not stall.
	 */
	int timeout_ms;
	int flags;	    /**< enum pier_transfer_flags, ored */
	uint32_t immediate; /**< with PIER_TRANSFER_NOTIFY; in host order */
	/**
	 * NULL, or called by the thread that drives the transfer when bytes have
	 * arrived, and when all have. Not 0 cancels it: pier_transfer_cancel(). It must
	 * not call anything else with this transfer than pier_transfer_query() and
	 * pier_transfer_query_rail().
	 */
	int (*progress)(void *context, uint64_t done, uint64_t length);
	void *context; /**< of progress */
	/** The least time between two calls of progress, in ms, from 0. */
	int progress_ms;
	/**
	 * NULL, or what pier_transfer_pack() wrote for a transfer of as many bytes:
	 * only those are moved that it does not say have arrived. Borrowed for the
	 * call, and may be hostile.
	 */
	const void *state;
	size_t state_size; /**< in bytes */
};

/**
 * Set every field to its default: a write without rails, the default chunk and window, no
 * time limit but stall_ms. Cannot fail.
 */
static inline void pier_transfer_attr_init(struct pier_transfer_attr *attr)
{
	memset(attr, 0, sizeof(*attr));
	attr->size = sizeof(*attr);
	attr->direction = PIER_TRANSFER_WRITE;
	attr->stall_ms = PIER_TIMEOUT_DEFAULT;
	attr->timeout_ms = PIER_TIMEOUT_DEFAULT;
}

/**
 * Move bytes, and wait until all have arrived: pier_transfer_begin(),
 * pier_transfer_wait() and pier_transfer_destroy(). What had arrived when it fails is
 * told by the sentence alone; to go on from there make a transfer.
 *
 * Errors: those of pier_transfer_begin() and pier_transfer_progress().
 */
PIER_API int pier_transfer_run(const struct pier_transfer_attr *attr);

/**
 * Make a transfer. Nothing is posted yet: pier_transfer_progress() does that.
 *
 * attr          borrowed, with all that it points to but regions and channels
 * ret_transfer  the caller's, to be given to pier_transfer_destroy()
 *
 * Errors: -EINVAL size, direction, flags, stall_ms, timeout_ms, progress_ms or
 * rail_count is not possible, a region is in another protection domain than its channel,
 * a channel takes no elements, or chunks cannot be announced (PIER_TRANSFER_ANNOUNCE):
 * also where 4 KiB of the region have more parts than a request has elements, or `state`
 * is of a transfer that did not announce; -ERANGE the bytes leave a region or a remote
 * vector, or as pier_remote_vec_length(); -EACCES a region is a memory window, or
 * (reading) was registered without LOCAL_WRITE; -ENOTCONN a channel is not connected;
 * -EPIPE one is broken; -EOPNOTSUPP reading, and max_rd_atomic of one end of a channel is
 * 0; -EMSGSIZE a port's max_msg_size is 0, or `state` has a wrong size; -EBADMSG `state`
 * is not the state of a transfer of this length; -EPROTONOSUPPORT it is of a version that
 * this library does not know; -ENOMEM.
 */
PIER_API int pier_transfer_begin(const struct pier_transfer_attr *attr,
				 struct pier_transfer **ret_transfer);

/**
 * Do what can be done now: see what has arrived, and post what there is room for.
 * Does not wait, unless a rail's time is up: stopping its channel can take a second.
 *
 * To drive a transfer from an event loop, watch pier_channel_fd() of all rails. Call
 * this until it returns 0; call pier_channel_arm() for each rail, and begin again if
 * that collected something; then sleep, no longer than the least time that shall be
 * noticed.
 *
 * Returns 1 when all bytes have arrived; 0 while the transfer goes on.
 *
 * Errors: the transfer has ended, and it is said again at each call. -ECANCELED it was
 * cancelled; -ETIMEDOUT timeout_ms was over; or no rail is left, and this is how the last
 * one failed: struct pier_result's errors, -ETIMEDOUT or -EAGAIN as stall_ms says, those
 * of pier_post_write() and pier_post_read(), those of pier_mr_sync_for_nic() and
 * pier_mr_sync_for_device(), -EIO of ibv_poll_cq(3), or, where the channel was broken by
 * another request, that one's. -EOPNOTSUPP or others of pier_mr_sync_for_device() also
 * when all bytes were read and cannot be made visible to the device: then there is
 * pier_reader_read_back().
 */
PIER_API int pier_transfer_progress(struct pier_transfer *transfer);

/**
 * Wait until a transfer has ended, asleep where it takes long.
 *
 * timeout_ms  in milliseconds, from 0
 *
 * Returns 1 when all bytes have arrived; 0 when the time is up, which changes nothing:
 * the transfer goes on, but posts nothing more until it is driven again.
 *
 * Errors: -EINVAL timeout_ms is negative; those of pier_transfer_progress().
 */
PIER_API int pier_transfer_wait(struct pier_transfer *transfer, int timeout_ms);

/**
 * End a transfer early: no chunk is posted any more. It has ended when those in flight
 * have completed, so drive it until then: its error is -ECANCELED, unless all bytes have
 * arrived all the same.
 *
 * Errors: -EALREADY it has ended, and nothing was changed.
 */
PIER_API int pier_transfer_cancel(struct pier_transfer *transfer);

/**
 * Go on with a transfer that ended with an error, or was cancelled: with exactly the
 * bytes that are not known to have arrived. All its times begin anew.
 *
 * rails, count  as of struct pier_transfer_attr: the same ones or others; any
 *               number of them. To bring back one rail while others work: cancel, drive
 *               it to its end, resume.
 *
 * Errors: -EBUSY it has not ended; -EALREADY all bytes have arrived; others as
 * pier_transfer_begin(). The transfer is then as before.
 */
PIER_API int pier_transfer_resume(struct pier_transfer *transfer,
				  const struct pier_rail *rails, uint32_t count);

/**
 * Give a transfer back; NULL is fine. One that has not ended is cancelled first, and
 * what is in flight is waited for, on each rail while it does not stall (stall_ms).
 *
 * Errors: -ECHILD.
 */
PIER_API int pier_transfer_destroy(struct pier_transfer *transfer);

/** How far a transfer is. */
struct pier_transfer_status {
	uint64_t length;	/**< of all, in bytes */
	uint64_t done;		/**< known to have arrived, in bytes */
	uint32_t rails;		/**< how many */
	uint32_t working_rails; /**< that have not failed */
	uint32_t in_flight;	/**< requests */
	int ended;		/**< not 0: it has, with or without an error */
	int error;		/**< 0, or what it ended with */
};

/** Tell how far a transfer is. Cannot fail. */
PIER_API void pier_transfer_query(const struct pier_transfer *transfer,
				  struct pier_transfer_status *ret_status);

#define PIER_RAIL_SENTENCE_SIZE 512

/** How a rail is. */
struct pier_rail_status {
	struct pier_channel *channel;
	uint64_t done;	    /**< bytes that it moved since it began, or was resumed */
	uint32_t in_flight; /**< requests */
	int error;	    /**< 0, or how it failed */
	char sentence[PIER_RAIL_SENTENCE_SIZE]; /**< why; "" without an error */
};

/**
 * Tell how a rail is, counted from 0 in the order in which they were given.
 *
 * Errors: -ERANGE there is no such rail.
 */
PIER_API int pier_transfer_query_rail(const struct pier_transfer *transfer,
				      uint32_t index,
				      struct pier_rail_status *ret_status);

/**
 * Write down what has arrived, for a transfer of the same bytes in another process, at
 * any time: see `state` of struct pier_transfer_attr. What is in flight counts as not
 * arrived. Whoever writes it to a file has to see to it that the bytes that arrived are
 * as durable.
 *
 * The form is little-endian, with magic and version (docs/wire.md), and has 16 bytes for
 * each range that is missing: few, since these are a range for each chunk that is or was
 * in flight at most, and the rest.
 *
 * ret_state  NULL: only the size is asked for
 * size       of it, in bytes
 *
 * Returns the size of the form, in bytes.
 * Errors: -ENOSPC size is too small; -ENOMEM; -ECHILD.
 */
PIER_API int pier_transfer_pack(const struct pier_transfer *transfer, void *ret_state,
				size_t size);

PIER_END_DECLS

#endif
