/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_POST_H
#define PIER_POST_H

#include <stdint.h>

#include <pier/channel.h>
#include <pier/element.h>
#include <pier/export.h>
#include <pier/remote.h>

PIER_BEGIN_DECLS

/**
 * Requests with all that verbs lets one say: flags, atomics, and many under one
 * doorbell. The calls of <pier/channel.h> are these with fewer arguments; threads,
 * handles and memory are as there.
 */

/** How a request is executed: values of pier_request.flags. */
enum pier_post_flag {
	/** Of a send or write: carries pier_request.immediate. */
	PIER_POST_IMMEDIATE = 1 << 0,
	/**
	 * Of a send: the peer's device invalidates the memory window with the key
	 * pier_request.invalidate_rkey before its receive completes (IBTA 9.4.1.1.1).
	 */
	PIER_POST_INVALIDATE = 1 << 1,
	/** Begins when the reads and atomics before it are complete (IBV_SEND_FENCE). */
	PIER_POST_FENCE = 1 << 2,
	/**
	 * Of a send, or a write with immediate: the peer is also woken where it waits
	 * for solicited completions alone (IBV_SEND_SOLICITED). pier's own waits wait
	 * for any.
	 */
	PIER_POST_SOLICITED = 1 << 3,
};

/** A request of the send queue. What the opcode does not use is not looked at. */
struct pier_request {
	/** PIER_OP_SEND, _WRITE, _READ, _COMPARE_SWAP or _FETCH_ADD. */
	enum pier_opcode opcode;
	int flags; /**< of enum pier_post_flag */
	union {
		const struct pier_gather *gather;   /**< of a send or write */
		const struct pier_scatter *scatter; /**< of a read or atomic */
	};
	int num_sge; /**< how many elements; 0: none */
	union {
		uint32_t immediate;	  /**< in host order */
		uint32_t invalidate_rkey; /**< of the peer */
	};
	const struct pier_remote *remote; /**< but of a send */
	uint64_t compare; /**< _COMPARE_SWAP: what must be there for the swap */
	uint64_t operand; /**< _COMPARE_SWAP: what is put there; _FETCH_ADD: is added */
};

/**
 * Post a request, as pier_post_send(), pier_post_write() and pier_post_read() do.
 *
 * request   borrowed for the call, with what it points to
 * ret_work  as of pier_post_send()
 *
 * Atomics change 8 bytes of the peer, at an address that 8 divides, as a number in the
 * peer's byte order, and give back what was there before, in the byte order of this
 * host; remote is of 8 bytes or more (the rest is left alone), the elements of 8
 * together. They are atomic with each other on one device, and with the peer's CPU
 * only if its device says so (atomic_cap of ibv_query_device(3)).
 *
 * A write or read of more elements than a request takes is posted as several requests
 * with one handle, as by pier_post_write_vec(); immediate data goes with the last.
 *
 * Errors: those of pier_post_send(), pier_post_write() and pier_post_write_vec();
 * -EINVAL also an opcode or flag that is not of the send queue, or a flag that does not
 * go with the opcode; elements of an atomic that are not of 8 bytes together, or its
 * address; -EOPNOTSUPP also an atomic, and the device has none; an invalidation, and
 * the device has no memory windows.
 */
PIER_API int pier_post_request(struct pier_channel *channel,
			       const struct pier_request *request,
			       struct pier_work *ret_work);

/**
 * Post many requests in the given order under one doorbell: the device is told once for
 * up to 32 of them, and completes the last one only.
 *
 * requests, count  borrowed for the call; from 1 to max_send_wr
 * ret_work         handle of all of them, or NULL
 *
 * Its completion is that of all, because they complete in order. When another of them
 * failed it ends with -ECANCELED, and the sentence tells the cause. Its result is that
 * of the last request. Each has to be one request: a list of too many elements is
 * -EINVAL here.
 *
 * All is checked before anything is posted. If the device then refuses one behind the
 * first, which is not to be expected, the channel is broken and what was posted is
 * stopped, as by pier_post_write_vec().
 *
 * Errors: those of pier_post_request(), with the number of the request in the sentence;
 * -EINVAL count is 0; -E2BIG more than max_send_wr; -EAGAIN the send queue has too few
 * free places now: see pier_channel_wait_room().
 */
PIER_API int pier_post_batch(struct pier_channel *channel,
			     const struct pier_request *requests, uint32_t count,
			     struct pier_work *ret_work);

/** One element, and the part of the peer's memory that it is written to. */
struct pier_write_pair {
	struct pier_gather gather;
	struct pier_remote remote; /**< as long as the element, or longer */
};

/** One element, and the part of the peer's memory that is read into it. */
struct pier_read_pair {
	struct pier_scatter scatter;
	struct pier_remote remote; /**< as long as the element, or longer */
};

/**
 * Post many plain writes, or reads, of one element each: as pier_post_batch(), of what
 * most batches are, and cheaper. Errors: those of pier_post_batch().
 */
PIER_API int pier_post_writes(struct pier_channel *channel,
			      const struct pier_write_pair *pairs, uint32_t count,
			      struct pier_work *ret_work);
PIER_API int pier_post_reads(struct pier_channel *channel,
			     const struct pier_read_pair *pairs, uint32_t count,
			     struct pier_work *ret_work);

/**
 * Compare 8 bytes of the peer with `compare`, and where they are equal put `swap` there;
 * or add to them. What was there before goes into the element. See pier_post_request().
 */
PIER_API int pier_post_compare_swap(struct pier_channel *channel,
				    const struct pier_scatter *element,
				    const struct pier_remote *remote, uint64_t compare,
				    uint64_t swap, struct pier_work *ret_work);
PIER_API int pier_post_fetch_add(struct pier_channel *channel,
				 const struct pier_scatter *element,
				 const struct pier_remote *remote, uint64_t add,
				 struct pier_work *ret_work);

/** Post one request and wait for it: the call above and pier_work_wait(). */
PIER_API int pier_channel_compare_swap(struct pier_channel *channel,
				       const struct pier_scatter *element,
				       const struct pier_remote *remote, uint64_t compare,
				       uint64_t swap, int timeout_ms);
PIER_API int pier_channel_fetch_add(struct pier_channel *channel,
				    const struct pier_scatter *element,
				    const struct pier_remote *remote, uint64_t add,
				    int timeout_ms);

/**
 * Wait until the send queue has room for `count` more requests: what keeps a window of
 * outstanding work full without ever being refused.
 *
 * count       from 1 to max_send_wr
 * timeout_ms  as everywhere; when it is over nothing is stopped
 *
 * Errors: -EINVAL count, timeout_ms; -ETIMEDOUT; -EPIPE the channel is broken; -EIO and
 * others of ibv_poll_cq(3), ibv_req_notify_cq(3) and poll(2).
 */
PIER_API int pier_channel_wait_room(struct pier_channel *channel, uint32_t count,
				    int timeout_ms);

/** How many more requests the send queue takes now, without asking the device. */
PIER_API uint32_t pier_channel_send_room(const struct pier_channel *channel);

PIER_END_DECLS

#endif
