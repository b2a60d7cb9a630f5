/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_RING_H
#define PIER_RING_H

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
 * Rings: slots of memory that are filled by lists of reads from the memory of peers, and
 * handed out in order. A ring is the core of a data loader.
 *
 *	pier_ring_create(pd, &attr, &ring);
 *	for (;;) {
 *		while (pier_ring_fill(ring, sources, 1, reads, count, NULL) == 0)
 *			... choose the reads of the next slot ...
 *		if (pier_ring_next(ring, timeout_ms, &slot) != 1)
 *			break;
 *		use(slot.pointer, slot.length);
 *		pier_ring_release(ring, &slot);
 *	}
 *
 * A ring has one region of memory, divided into slots of equal size. Filling a slot is
 * a list of reads. Each read copies one range of a source, which is the memory of a
 * peer and the channel to it, to one place in the slot. The list may have any number of
 * reads, from any number of sources. The ring posts up to 32 reads under one doorbell,
 * and as many as the send queues of the channels have room for; the rest follows as
 * these complete. Fills on one channel are posted in the order in which they began.
 *
 * pier_ring_next() returns the slots in the order of pier_ring_fill(), whichever is
 * filled first. A slot then belongs to the caller until pier_ring_release().
 *
 * A fill fails if one of its channels breaks. It keeps its place in the order, and the
 * record of the reads that have arrived. pier_ring_retry() continues it with other
 * sources, for instance another server with the same data, or the same one after
 * pier_channel_reset(); only reads that are not known to have arrived are posted again.
 * Reads have no effect on the peer, so repeating one is harmless.
 *
 * Device memory: the ring does the work of pier_mr_sync_for_device() (<pier/sync.h>).
 * If its region has a bounce buffer, bytes are copied as they arrive, while other reads
 * are in flight. Memory that is read into directly is flushed once for each slot,
 * before it is returned.
 *
 * Channels: all channels are in the ring's protection domain. Different fills may use
 * different ones, and channels may share a completion queue. The caller may post other
 * requests on them. A channel must stay valid while a fill uses it (pier_ring_uses()). To
 * destroy it earlier, call pier_channel_cancel() and then pier_ring_progress().
 *
 * Lifetime: a ring keeps its protection domain, and the region that it was given.
 *
 * Threads: one thread at a time may use a ring and the channels of its fills. Only
 * pier_ring_release() and pier_ring_wake() may be called by any thread at any time. A
 * slot that was returned may be read and written by any thread.
 *
 * Processes: in a child of fork(2), every call except plain queries fails with -ECHILD
 * for a ring of the parent (<pier/device.h>).
 */

struct pier_ring;
struct pier_buffer;

/** The attributes of a new ring. Set them up with pier_ring_attr_init(). */
struct pier_ring_attr {
	/** sizeof(struct pier_ring_attr), so that fields can be added. */
	size_t size;
	/**
	 * In bytes, at least 1. Slot n begins at n * slot_size; with a multiple of the
	 * page size, slots begin at pages.
	 */
	uint64_t slot_size;
	uint32_t slots; /**< number of slots, at least 1 */
	/** For registering the allocated memory; includes PIER_ACCESS_LOCAL_WRITE. */
	uint32_t access;
	/**
	 * Memory that the ring allocates: a specification for pier_buffer_alloc().
	 * Ignored if mr is set.
	 */
	const char *spec;
	enum pier_policy policy; /**< for registering the allocated memory */
	/** In milliseconds, for calls with PIER_TIMEOUT_DEFAULT; more than 0. */
	int timeout_ms;
	/**
	 * In milliseconds, more than 0; PIER_TIMEOUT_DEFAULT: the timeout_ms of each
	 * channel. If none of a ring's reads completes on a channel for this time,
	 * everything outstanding on the channel is stopped and the channel is broken,
	 * as after a timeout of pier_channel_read(). If other requests fill the send
	 * queue for this time, the fills that wait for room fail, and the channel is left
	 * alone.
	 */
	int stall_ms;
	/**
	 * Instead of spec: a region of the caller with LOCAL_WRITE, in the same
	 * protection domain; the ring keeps it. Slot 0 begins at `offset`, in bytes.
	 */
	struct pier_mr *mr;
	uint64_t offset;
};

/**
 * Set every field to its default: 4 slots of 1 MiB of host memory that the ring
 * allocates. Cannot fail.
 */
static inline void pier_ring_attr_init(struct pier_ring_attr *attr)
{
	memset(attr, 0, sizeof(*attr));
	attr->size = sizeof(*attr);
	attr->slot_size = 1 << 20;
	attr->slots = 4;
	attr->access = PIER_ACCESS_LOCAL_WRITE;
	attr->spec = "host";
	attr->policy = PIER_POLICY_DIRECT;
	attr->timeout_ms = 30000;
	attr->stall_ms = PIER_TIMEOUT_DEFAULT;
}

/**
 * Create a ring: allocate and register its memory, once.
 *
 * attr  borrowed with everything it points to, except mr, which is kept; NULL: the
 *       defaults
 *
 * Errors: -EINVAL slots, slot_size, timeout_ms or stall_ms is invalid, access lacks
 * LOCAL_WRITE, neither spec nor mr is set, or mr belongs to another protection domain;
 * -ERANGE the slots do not fit into mr, or their sizes exceed 64 bits; -EACCES mr lacks
 * LOCAL_WRITE or is a memory window; -ENOMEM; others of pier_buffer_alloc(),
 * pier_mr_reg_buffer() and eventfd(2).
 */
PIER_API int pier_ring_create(struct pier_pd *pd, const struct pier_ring_attr *attr,
			      struct pier_ring **ret_ring);

/**
 * Destroy a ring and the memory that it allocated; NULL is allowed.
 *
 * Fills that have not ended are given up, as by pier_ring_cancel().
 *
 * Errors: -EBUSY slots that were returned are not released (the error message gives the
 * number), and nothing was changed; others of pier_mr_dereg().
 */
PIER_API int pier_ring_destroy(struct pier_ring *ring);

/**
 * Memory of a peer that is read from: a remote vector, and the channel to that peer.
 * Frozen: programs have arrays of them.
 */
struct pier_ring_source {
	struct pier_channel *channel;	 /**< connected, in the ring's PD */
	const struct pier_remote *parts; /**< with keys for this channel */
	uint32_t count;			 /**< the number of parts */
};

/** One read of a fill. Frozen: programs have arrays of them. */
struct pier_ring_read {
	uint64_t offset;	/**< in the slot, in bytes */
	uint64_t remote_offset; /**< in the remote vector of the source, in bytes */
	uint32_t length;	/**< in bytes; 0 reads nothing */
	uint32_t source;	/**< index into the array of sources */
};

/**
 * Take a free slot, and begin to fill it. Does not wait.
 *
 * sources     borrowed for the call; the channels until the fill has ended
 * reads       any number of them, in any order; borrowed for the call. Ranges of the
 *             slot should not overlap: the order of the reads is undefined. Bytes that
 *             no read covers keep their contents
 * ret_number  number of the slot, from 0; may be NULL
 *
 * Errors: -EAGAIN no slot is free: release one, or wait with pier_ring_wait();
 * -ERANGE a read leaves the slot or its source, or its source is not in the array (the
 * error message names the read); -EINVAL a channel belongs to another protection domain
 * or takes no elements, or a pointer of a source is NULL; -ENOTCONN or -EPIPE a channel
 * is not connected or is broken; -EOPNOTSUPP max_rd_atomic of one end of a channel is 0;
 * -EMSGSIZE a port's max_msg_size is 0; -ENOMEM. After an error no slot was taken and
 * nothing was posted. Errors of posting fail the fill: see pier_ring_next().
 */
PIER_API int pier_ring_fill(struct pier_ring *ring,
			    const struct pier_ring_source *sources, uint32_t source_count,
			    const struct pier_ring_read *reads, uint32_t count,
			    uint32_t *ret_number);

/**
 * Continue a fill that failed, with the same or other sources. The reads that are not
 * known to have arrived are posted again. The fill keeps its place in the order.
 *
 * number   of the slot. pier_ring_next() may have reported the error or not: after a
 *          channel broke, all fills that used it can be continued at once
 * sources  as for pier_ring_fill(). Source n must have the same bytes as source n at
 *          the beginning, at the same offsets. Sources that the missing reads do not
 *          use are not looked at
 *
 * Errors: -ENOENT no fill of this slot has begun, or it was released; -EBUSY the fill
 * has not ended; -EALREADY all bytes have arrived; others as for pier_ring_fill(). The
 * fill is then unchanged.
 */
PIER_API int pier_ring_retry(struct pier_ring *ring, uint32_t number,
			     const struct pier_ring_source *sources,
			     uint32_t source_count);

/**
 * A filled slot, or one whose fill has failed. It is a value: it can be copied, and is
 * released once.
 */
struct pier_ring_slot {
	/**
	 * The CPU's pointer to the slot; NULL if the ring was given its region, or the
	 * CPU cannot reach the memory.
	 */
	void *pointer;
	uint64_t iova;	 /**< of the slot, for elements of the region */
	uint64_t offset; /**< of the slot in the region, in bytes */
	uint64_t length; /**< from its beginning to the end of the last read, in bytes */
	uint64_t sequence;    /**< the number of fills that began before it */
	uint32_t number;      /**< of the slot, from 0 */
	uint32_t reads;	      /**< of the fill */
	uint32_t missing;     /**< reads that are not known to have arrived */
	int error;	      /**< 0, or the error with which the fill failed */
	uint64_t reserved[2]; /**< 0; for later members */
};

/**
 * Drive the fills: collect the reads that have completed, and post as many as there is
 * room for. Does not wait. A channel on which a read failed, or nothing completed for
 * stall_ms, is stopped by this call and the next ones; a device that withholds
 * completions is given a second.
 *
 * To use a ring in an event loop, watch pier_channel_fd() of the channels. When one is
 * readable, call this function; then pier_channel_arm() for each channel, and start
 * again if that collected a completion. pier_ring_fd() reports released slots.
 *
 * Returns 1 if pier_ring_next() would not wait; otherwise 0.
 *
 * Errors: none but -ECHILD. A fill that fails is reported by pier_ring_next().
 */
PIER_API int pier_ring_progress(struct pier_ring *ring);

/**
 * Wait until the oldest fill has ended, and return its slot. Drives all fills, and
 * sleeps if that takes long. A timeout stops nothing.
 *
 * timeout_ms  in milliseconds; 0: do not wait; PIER_TIMEOUT_DEFAULT: the ring's
 * ret_slot    the slot; also written if its fill has failed; otherwise zeroed
 *
 * Returns 1 when all reads of the slot have arrived: it belongs to the caller, who must
 * pass it to pier_ring_release(). Returns 0 if the fill has not ended and timeout_ms is
 * 0.
 *
 * If the fill failed, its error is returned, and ret_slot->error is the same; it is 0
 * for all other errors. The fill remains the oldest, and its error is returned again,
 * until pier_ring_retry() continues it, or pier_ring_release() gives it up.
 *
 * Errors: of a fill: those of struct pier_result; -EHOSTUNREACH nothing completed on a
 * channel for stall_ms; -EAGAIN other requests filled the send queue for stall_ms; those
 * of pier_channel_post_reads() and pier_mr_sync_for_device(); -EIO of ibv_poll_cq(3); or,
 * if another request broke the channel, the error of that request; -EPIPE if the call
 * that posted it stopped the channel at its own deadline or was interrupted. If the bytes
 * have arrived and cannot be made visible to the device, `missing` is 0. -ETIMEDOUT the
 * fill did not end in time; -ENODATA no fill has begun that was not returned; -EINVAL
 * timeout_ms is invalid; -EINTR pier_interrupt_set(); others of poll(2).
 */
PIER_API int pier_ring_next(struct pier_ring *ring, int timeout_ms,
			    struct pier_ring_slot *ret_slot);

/**
 * Wait until the caller has something to do: the oldest fill has ended, so that
 * pier_ring_next() would not wait; a slot was released since the last wait, so that
 * pier_ring_fill() can take it; or pier_ring_wake() was called. Drives all fills. A
 * timeout stops nothing.
 *
 * timeout_ms  in milliseconds; 0: do not wait; PIER_TIMEOUT_DEFAULT: the ring's
 *
 * Returns 1; 0 if there is nothing and timeout_ms is 0. A wait may end early.
 *
 * Errors: -ETIMEDOUT there was nothing in time; -EINVAL timeout_ms is invalid; -EINTR
 * pier_interrupt_set(); others of poll(2).
 */
PIER_API int pier_ring_wait(struct pier_ring *ring, int timeout_ms);

/**
 * End the current or the next pier_ring_wait(). Any thread may call this.
 *
 * Errors: -ECHILD the ring belongs to the parent process.
 */
PIER_API int pier_ring_wake(struct pier_ring *ring);

/**
 * Return an fd for poll(2) and epoll(7), which becomes readable when a slot is released,
 * and by pier_ring_wake(). pier_ring_progress() and pier_ring_wait() make it unreadable
 * again. The ring owns it: do not read or close it. Cannot fail.
 */
PIER_API int pier_ring_fd(const struct pier_ring *ring);

/**
 * Give up all fills that have not ended. Nothing more is posted, and the call waits for
 * the reads in flight, on each channel until it stalls (stall_ms). Fills with reads that
 * were not posted fail with -ECANCELED. They can be continued or given up, as after any
 * error.
 *
 * Errors: only -ECHILD, in a child of fork(2).
 */
PIER_API int pier_ring_cancel(struct pier_ring *ring);

/**
 * Return true if a fill uses a channel now, and false if the channel may be destroyed.
 * Cannot fail.
 */
PIER_API bool pier_ring_uses(const struct pier_ring *ring,
			     const struct pier_channel *channel);

/**
 * Release a slot that pier_ring_next() returned, so that it can be filled again. Any
 * thread may call this, in any order of the slots. With a slot whose fill has failed,
 * this gives the fill up.
 *
 * Device code must have finished with the slot.
 *
 * Errors: -ESTALE the slot was released before, its fill was continued, or it belongs to
 * another ring.
 */
PIER_API int pier_ring_release(struct pier_ring *ring, const struct pier_ring_slot *slot);

/**
 * List the reads of a failed fill that are not known to have arrived, as indices into
 * the array that was given to pier_ring_fill(), in ascending order.
 *
 * number    of the slot
 * capacity  of ret_indices
 *
 * Returns the number of such reads, which may be more than `capacity`.
 *
 * Errors: -ENOENT as for pier_ring_retry(); -EBUSY the fill has not ended.
 */
PIER_API int pier_ring_missing(const struct pier_ring *ring, uint32_t number,
			       uint32_t *ret_indices, uint32_t capacity);

/** The slots of a ring by their states, and what it has done. */
struct pier_ring_status {
	struct pier_mr *mr; /**< the region of the slots */
	/** The buffer that the ring allocated; NULL if it was given a region. */
	struct pier_buffer *buffer;
	uint32_t free;	    /**< slots that pier_ring_fill() can take */
	uint32_t filling;   /**< fills that have not ended */
	uint32_t ended;	    /**< fills that have ended, and were not returned */
	uint32_t held;	    /**< returned and not released */
	uint32_t in_flight; /**< reads that the devices have */
	uint64_t doorbells; /**< since the ring was created */
	uint64_t reads;	    /**< requests posted since then */
	uint64_t bytes;	    /**< that have arrived since then */
};

/**
 * Return the state of a ring.
 *
 * ret_status  written up to `size` bytes
 * size        sizeof(*ret_status) in the caller
 *
 * Cannot fail.
 */
PIER_API void pier_ring_query(const struct pier_ring *ring,
			      struct pier_ring_status *ret_status, size_t size);

PIER_END_DECLS

#endif
