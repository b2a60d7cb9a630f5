/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TRANSFER_H
#define PIER_TRANSFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <pier/channel.h>
#include <pier/export.h>
#include <pier/mr.h>
#include <pier/remote.h>

PIER_BEGIN_DECLS

/**
 * Transfers: bytes moved to or from the memory of a peer, over one or several channels.
 * A transfer moves any number of bytes, in chunks, between local memory and the peer's.
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
 *	error = pier_transfer_run(&attr, PIER_TIMEOUT_DEFAULT);
 *
 * Each channel is a rail. It has its own local region and remote vector for the same
 * bytes, because different devices have different keys for the same memory. A rail that
 * has completed a chunk takes the next one, so a fast rail moves more than a slow one.
 * A chunk is one request, or two with PIER_TRANSFER_ANNOUNCE. It ends at the chunk size,
 * at the end of a remote part, after as many elements as the channel accepts, or at the
 * port's max_msg_size.
 *
 * Chunks of one rail arrive in order; chunks of several rails arrive in any order. If
 * the request of a chunk failed, some or all of its bytes may have arrived, and the
 * transfer moves the chunk again. Therefore the source must not change, and nobody may
 * use the target, until the transfer has ended. Moving a chunk twice is harmless,
 * because the same bytes go to the same place.
 *
 * When a rail fails, the other rails move the chunks that it had not completed. When no
 * rail is left, the transfer ends with an error, but keeps the record of what has
 * arrived: pier_transfer_resume() continues with other rails, or with the same ones
 * after their channels have been reset (pier_channel_reset()). If a rail failed because
 * a request was refused or a copy failed, its channel still works. A write has one more
 * rule: after a channel failed at this end, its packets may still arrive at the peer.
 * They carry bytes that the transfer moves again. Before the peer uses the memory for
 * anything else, it must destroy or reset its end of that channel.
 *
 * When a transfer has ended, with or without an error, it has no requests in flight,
 * and no longer accesses its channels or regions. Until then they must stay valid.
 *
 * Device memory: at this end, the transfer does the work of pier_mr_sync_for_nic() and
 * pier_mr_sync_for_device() (<pier/sync.h>). If a region has a bounce buffer, the bytes
 * of a chunk are copied just before the chunk is posted, or after it was read, while
 * other chunks are in flight. Memory that is read into directly is flushed once, after
 * all bytes have arrived. Bytes that were read are therefore visible to device code
 * only after the transfer has ended without an error. A copy that fails makes its rail
 * fail. The peer synchronises its own memory with a receiver (<pier/receiver.h>) or
 * with these two functions.
 *
 * Digests: a NIC, a driver or a bridge that moves wrong bytes, old ones or none reports
 * success. With PIER_TRANSFER_DIGEST, a chunk counts as arrived only if the CRC-32C of
 * its source equals that of the bytes that arrived, after they were made visible. If not,
 * the transfer ends with -EBADMSG, and the error message has the chunk, both digests, and
 * how the NIC reaches the local memory. It can be resumed, and moves the chunk again.
 *
 *	write		The source is digested before the chunk is posted. The bytes
 *			at the peer are read back over the same rail. The peer's keys
 *			must permit reads, and max_rd_atomic must not be 0.
 *	read		The source is read a second time, and the bytes that arrived
 *			in the region are digested.
 *	write with	The digest travels with the announcement, and the receiver
 *	PIER_TRANSFER_	compares it (<pier/receiver.h>), which needs the same flag and
 *	ANNOUNCE	two receives for each chunk. The transfer here may end without
 *			an error. The channel needs a max_send_wr of 3.
 *
 * A chunk that a failed rail had moved is judged anew by the rail that moves it again.
 * Later changes are not noticed: by packets of a failed rail that arrive after the chunk
 * was compared, by other writers, and by the peer's copies out of bounce buffers after a
 * write without a receiver. For the second reads each rail has a region of its own in the
 * channel's PD until the transfer has ended, with room for each chunk in flight; a chunk
 * then has at most 1 MiB, and `window` is at most 16. Device memory is
 * copied to the host for its digest. CRC-32C finds accidents, no forgeries. Streams and
 * rings have no digests. libisal is opened when the first digest is needed (Debian:
 * libisal2).
 *
 * Threads: one thread at a time may use a transfer and, until it has ended, the
 * channels of its rails. That thread may post other requests on them. Transfers on
 * different channels are independent.
 *
 * Processes: in a child of fork(2), all functions except pier_transfer_query() and
 * pier_transfer_query_rail() fail with -ECHILD for a transfer of the parent
 * (<pier/device.h>).
 */

struct pier_transfer;

/**
 * A channel that moves bytes of a transfer. Both offsets refer to byte 0 of the
 * transfer. Frozen: attributes have arrays of them.
 */
struct pier_rail {
	struct pier_channel *channel; /**< connected */
	struct pier_mr *mr;	      /**< the local memory, in the channel's PD */
	uint64_t offset;	      /**< in the region, in bytes */
	/** The peer's memory, with keys for this channel. Borrowed for the call. */
	const struct pier_remote *parts;
	uint32_t count;		/**< the number of parts */
	uint64_t remote_offset; /**< in the remote vector, in bytes */
};

/** The most rails of a transfer. */
#define PIER_RAILS_MAX 64

/** The direction of a transfer. */
enum pier_transfer_direction {
	PIER_TRANSFER_WRITE = 1, /**< from here to the peer */
	PIER_TRANSFER_READ = 2,	 /**< from the peer to here */
};

/** Flags of a transfer: values of pier_transfer_attr.flags, ored. */
enum pier_transfer_flag {
	/** The first rail that fails ends the transfer; the others do not take over. */
	PIER_TRANSFER_FAIL_FAST = 1,
	/**
	 * After all bytes have arrived, notify the peer with a write of no bytes with
	 * immediate data. The peer needs a receive posted on each rail. The first
	 * working rail sends the notification; if it fails in doing so, another does.
	 * The peer can therefore be notified more than once. The notification covers
	 * all bytes that arrived through the same device of the peer. If the peer's
	 * ends of the rails are on several devices, post such a write on each
	 * (PIER_POST_IMMEDIATE).
	 */
	PIER_TRANSFER_NOTIFY = 2,
	/**
	 * Announce each chunk to the peer. Each chunk takes two requests: a plain write,
	 * and a few bytes with immediate data behind it (docs/wire.md). The peer needs
	 * a receive posted on the rail for each chunk; a receiver provides them
	 * (<pier/receiver.h>), and the channel needs a max_send_wr of 2. `chunk` must be
	 * a multiple of 4 KiB, all remote parts except the last must end on a block
	 * boundary, and the transfer may have up to 16 TiB. Not allowed for reads, nor
	 * with PIER_TRANSFER_NOTIFY.
	 */
	PIER_TRANSFER_ANNOUNCE = 4,
	/**
	 * Compare a digest of each chunk's source with one of the bytes that arrived:
	 * see "Digests" above. PIER_TRANSFER_DIGEST=on in the environment sets this for
	 * all transfers and receivers that are no streams.
	 */
	PIER_TRANSFER_DIGEST = 8,
};

/** The attributes of a transfer. Set them up with pier_transfer_attr_init(). */
struct pier_transfer_attr {
	/** sizeof(struct pier_transfer_attr), so that fields can be added. */
	size_t size;
	enum pier_transfer_direction direction;
	uint32_t rail_count;	       /**< 1 to PIER_RAILS_MAX */
	const struct pier_rail *rails; /**< borrowed for the call */
	uint64_t length;	       /**< in bytes; 0 moves nothing */
	/**
	 * The most bytes of a chunk; 0: 1 MiB. docs/design/transfer.md gives the
	 * reason.
	 */
	uint32_t chunk;
	/**
	 * The most chunks in flight on each rail, limited to what its send queue holds.
	 * 0: half of the send queue, at most 16; the other half is for other requests
	 * on the channel. If other requests fill the queue, chunks wait.
	 */
	uint32_t window;
	/**
	 * In milliseconds, more than 0; PIER_TIMEOUT_DEFAULT: the timeout_ms of each
	 * channel. A rail on which no chunk completes for this time has failed, and its
	 * channel is broken, as after a timeout of pier_channel_write(). A rail whose
	 * send queue was full of other requests for this time has also failed; its
	 * channel is left alone.
	 */
	int stall_ms;
	uint32_t flags;	    /**< enum pier_transfer_flag, ored */
	uint32_t immediate; /**< with PIER_TRANSFER_NOTIFY; in host byte order */
	/**
	 * NULL, or a callback. The thread that drives the transfer calls it when bytes
	 * have arrived, and when all have. A return value other than 0 cancels the
	 * transfer: see pier_transfer_cancel(). The callback must not call any function
	 * with this transfer except pier_transfer_query() and
	 * pier_transfer_query_rail().
	 */
	int (*progress)(void *context, uint64_t done, uint64_t length);
	void *context; /**< the first argument of progress */
	/** The minimum time between two calls of progress, in milliseconds, from 0. */
	int progress_ms;
	/**
	 * NULL, or the state that pier_transfer_pack() wrote for a transfer of the same
	 * length. Only bytes that have not arrived according to the state are moved.
	 * Borrowed for the call. May be hostile.
	 */
	const void *state;
	size_t state_size; /**< in bytes */
	/**
	 * 0, or the bytes of the buffer of a stream (<pier/stream.h>): a multiple of
	 * PIER_STREAM_BLOCK up to PIER_STREAM_SIZE_MAX. A stream needs
	 * PIER_TRANSFER_ANNOUNCE, and has neither `length` nor `progress` nor `state`.
	 */
	uint64_t stream_size;
};

/**
 * Set every field to its default: a write without rails, the default chunk and window.
 * Cannot fail.
 */
static inline void pier_transfer_attr_init(struct pier_transfer_attr *attr)
{
	memset(attr, 0, sizeof(*attr));
	attr->size = sizeof(*attr);
	attr->direction = PIER_TRANSFER_WRITE;
	attr->stall_ms = PIER_TIMEOUT_DEFAULT;
}

/**
 * Run a transfer and wait until all bytes have arrived. This is pier_transfer_create(),
 * pier_transfer_wait() and pier_transfer_destroy(). If it fails, only
 * pier_error_message() reports how much had arrived. To be able to resume, use
 * pier_transfer_create() instead.
 *
 * timeout_ms  in milliseconds, from 0; PIER_TIMEOUT_DEFAULT: no limit except stall_ms.
 *             After this time no more chunks are posted, and the call waits for those in
 *             flight, on each rail until it stalls
 *
 * Errors: -EINVAL timeout_ms is invalid; -ETIMEDOUT the time limit expired; -EINTR and
 * others of pier_transfer_wait(); those of pier_transfer_create().
 */
PIER_API int pier_transfer_run(const struct pier_transfer_attr *attr, int timeout_ms);

/**
 * Create a transfer. Nothing is posted before pier_transfer_progress().
 *
 * attr          borrowed for the call, with everything it points to except the regions
 *               and channels
 * ret_transfer  the transfer; give it to pier_transfer_destroy()
 *
 * Errors: -EINVAL size, direction, flags, stall_ms, progress_ms, stream_size or
 * rail_count is not possible, a pointer of a rail is NULL, a region is in another
 * protection domain than its channel, a channel accepts no elements, or chunks cannot be
 * announced (PIER_TRANSFER_ANNOUNCE), which includes a region with more parts in 4 KiB
 * than a request has elements, and a `state` of a transfer that did not announce; -ERANGE
 * the bytes are not inside a region or a remote vector, or an error of
 * pier_remote_vec_sub(); -EACCES a region is a memory window, or (reading) was
 * registered without LOCAL_WRITE; -ENOTCONN a channel is not connected; -EPIPE a
 * channel is broken; -EOPNOTSUPP reading or digests without PIER_TRANSFER_ANNOUNCE, and
 * max_rd_atomic of one end of a channel is 0; -EMSGSIZE a port's max_msg_size is 0, or
 * `state` has the wrong size; -EBADMSG `state` is not the state of a transfer of this
 * length; -EPROTONOSUPPORT this library does not support the version of `state`; -EBUSY a
 * channel of a stream has receives posted; -ELIBACC digests, and libisal cannot be
 * opened; -EOPNOTSUPP digests, and a region has a dma-buf without a buffer
 * (pier_mr_range_dmabuf()); digests, and those of pier_mr_reg_buffer(); -ENOMEM.
 */
PIER_API int pier_transfer_create(const struct pier_transfer_attr *attr,
				  struct pier_transfer **ret_transfer);

/**
 * Drive a transfer: collect the chunks that have completed, and post as many as there
 * is room for. Does not wait. The channel of a rail that failed or stalled is stopped by
 * this call and the next ones; a device that withholds completions is given a second.
 *
 * To drive a transfer from an event loop, watch pier_channel_fd() of all rails. Call
 * this function until it returns 0, then pier_channel_arm() for each rail. If that
 * collected a completion, start again. Otherwise sleep, for no longer than the shortest
 * time limit that must be noticed; without any, for no longer than a second.
 *
 * Returns 1 when all bytes have arrived; 0 while the transfer is in progress.
 *
 * Errors: the transfer has ended, and every later call returns the same error.
 * -ECANCELED it was cancelled; -EBADMSG the digests of a chunk differ. Otherwise no rail
 * is left, and the error is that of the last one: an error of struct pier_result;
 * -EHOSTUNREACH no chunk completed for stall_ms; -EAGAIN other requests filled the send
 * queue for stall_ms; those of pier_channel_post_write(), pier_channel_post_read(),
 * pier_mr_sync_for_nic() and pier_mr_sync_for_device(); -EIO of ibv_poll_cq(3); or, if
 * another request broke the channel, the error of that request; -EPIPE if the call that
 * posted it, such as pier_channel_send(), stopped the channel at its own deadline or was
 * interrupted. Errors of pier_mr_sync_for_device() are also returned if all bytes were
 * read but cannot be made visible to the device: call it again.
 */
PIER_API int pier_transfer_progress(struct pier_transfer *transfer);

/**
 * Drive a transfer until it has ended, asleep during long waits. A timeout stops
 * nothing: the transfer is still in progress, but posts nothing more until it is driven
 * again. To give it up, call pier_transfer_cancel().
 *
 * timeout_ms  in milliseconds; 0: do not wait; PIER_TIMEOUT_DEFAULT: until it has ended,
 *             as it does when it stalls (stall_ms)
 *
 * Returns 1 when all bytes have arrived. Returns 0 if the transfer is in progress and
 * timeout_ms is 0, or if a stream has news for its caller (<pier/stream.h>).
 *
 * Errors: -ETIMEDOUT it did not end in time; -EINVAL timeout_ms is invalid; -EINTR
 * pier_interrupt_set(), and others of poll(2): it is still in progress. All others are
 * those of pier_transfer_progress(), with which the transfer has ended.
 */
PIER_API int pier_transfer_wait(struct pier_transfer *transfer, int timeout_ms);

/**
 * Cancel a transfer: no more chunks are posted. The transfer ends when those in flight
 * have completed, so continue to drive it. Its error is then -ECANCELED, unless all
 * bytes have arrived.
 *
 * Errors: -EALREADY the transfer has ended; nothing was changed.
 */
PIER_API int pier_transfer_cancel(struct pier_transfer *transfer);

/**
 * Resume a transfer that ended with an error or was cancelled. It moves exactly the
 * bytes that are not known to have arrived. All time limits start again.
 *
 * rails, count  as in struct pier_transfer_attr: the same rails or others, in any
 *               number
 *
 * To bring back one rail while others work, cancel the transfer, drive it to its end,
 * and resume it. A stream needs channels that were reset at both ends.
 *
 * Errors: -EBUSY the transfer has not ended; -EALREADY all bytes have arrived; others
 * as for pier_transfer_create(). The transfer is then unchanged.
 */
PIER_API int pier_transfer_resume(struct pier_transfer *transfer,
				  const struct pier_rail *rails, uint32_t count);

/**
 * Destroy a transfer. NULL is allowed. A transfer that has not ended is cancelled
 * first, and the function waits for the chunks in flight, on each rail until it stalls
 * (stall_ms).
 *
 * Errors: -ECHILD the transfer belongs to the parent process.
 */
PIER_API int pier_transfer_destroy(struct pier_transfer *transfer);

/** The progress of a transfer. */
struct pier_transfer_status {
	uint64_t length;	/**< of the transfer, in bytes */
	uint64_t done;		/**< known to have arrived, in bytes */
	uint32_t rails;		/**< the number of rails */
	uint32_t working_rails; /**< rails that have not failed */
	uint32_t in_flight;	/**< requests */
	bool ended;		/**< with or without an error */
	int error;		/**< 0, or the error with which it ended */
};

/**
 * Return the progress of a transfer.
 *
 * ret_status  written up to `size` bytes
 * size        sizeof(*ret_status) in the caller
 *
 * Cannot fail.
 */
PIER_API void pier_transfer_query(const struct pier_transfer *transfer,
				  struct pier_transfer_status *ret_status, size_t size);

#define PIER_RAIL_SENTENCE_SIZE 512

/** The state of a rail. */
struct pier_rail_status {
	struct pier_channel *channel;
	uint64_t done;	    /**< bytes moved since the start or the resumption */
	uint32_t in_flight; /**< requests */
	int error;	    /**< 0, or the error with which it failed */
	char sentence[PIER_RAIL_SENTENCE_SIZE]; /**< the reason; "" without an error */
};

/**
 * Return the state of a rail.
 *
 * index       from 0, in the order in which the rails were given
 * ret_status  written up to `size` bytes
 * size        sizeof(*ret_status) in the caller
 *
 * Errors: -ERANGE there is no such rail.
 */
PIER_API int pier_transfer_query_rail(const struct pier_transfer *transfer,
				      uint32_t index, struct pier_rail_status *ret_status,
				      size_t size);

/**
 * Write the state of a transfer, at any time. A transfer of the same bytes in another
 * process can continue from it: see `state` of struct pier_transfer_attr. Chunks in
 * flight count as not arrived. If you store the state in a file, make sure that the
 * bytes which have arrived are stored as durably.
 *
 * The form is little-endian, with magic and version (docs/wire.md), and has 16 bytes
 * for each range that is missing. There are few: at most one for each chunk that is or
 * was in flight, and one for the rest.
 *
 * ret_state  NULL: only return the size
 * size       of ret_state, in bytes
 *
 * Returns the size of the form in bytes.
 *
 * Errors: -ENOSPC size is too small; -EINVAL the transfer is a stream; -ENOMEM; -ECHILD
 * the transfer belongs to the parent process.
 */
PIER_API int pier_transfer_pack(const struct pier_transfer *transfer, void *ret_state,
				size_t size);

PIER_END_DECLS

#endif
