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
 * Requests with all options of verbs: flags, atomics, and many under one doorbell.
 *
 * The calls of <pier/channel.h> are these calls with fewer arguments. The rules for
 * threads, handles and memory are the same.
 */

/** Flags of a request: values of pier_request.flags, ored. */
enum pier_post_flag {
	/** Sends and writes: carry pier_request.immediate. */
	PIER_POST_IMMEDIATE = 1 << 0,
	/**
	 * Sends: before its receive completes, the peer's device invalidates the memory
	 * window whose key is pier_request.invalidate_rkey (IBTA 9.4.1.1.1).
	 */
	PIER_POST_INVALIDATE = 1 << 1,
	/** Begin when the reads and atomics before it are complete (IBV_SEND_FENCE). */
	PIER_POST_FENCE = 1 << 2,
	/**
	 * Sends and writes with immediate data: also wake a peer that waits for
	 * solicited completions only (IBV_SEND_SOLICITED). pier's own waits wait for
	 * any completion.
	 */
	PIER_POST_SOLICITED = 1 << 3,
};

/**
 * A request. Fields that the opcode does not use are ignored. Frozen: batches are arrays
 * of them. A later flag can give a meaning to fields that the opcode does not use.
 */
struct pier_request {
	/** PIER_OP_SEND, _RECV, _WRITE, _READ, _COMPARE_SWAP or _FETCH_ADD. */
	enum pier_opcode opcode;
	uint32_t flags; /**< enum pier_post_flag, ored */
	union {
		const struct pier_gather *gather;   /**< for sends and writes */
		const struct pier_scatter *scatter; /**< for all others */
	};
	/** Number of elements; 0: none. If it is more, the list must not be NULL. */
	uint32_t num_sge;
	/**
	 * Writes and reads: the number of parts at `remote`, which is then a remote
	 * vector (<pier/remote_vec.h>), such as the parts of one region. 0: `remote` is
	 * no vector, and the message is not longer than the port's max_msg_size.
	 */
	uint32_t remote_count;
	union {
		/**
		 * 32 bits that the peer finds in its receive, in host order. Verbs, and
		 * so a peer without pier, has them in network order.
		 */
		uint32_t immediate;
		uint32_t invalidate_rkey; /**< key of the peer's window */
	};
	const struct pier_remote *remote; /**< not for sends and receives */
	uint64_t compare;		  /**< _COMPARE_SWAP: the expected value */
	/** _COMPARE_SWAP: the new value; _FETCH_ADD: the value to add. */
	uint64_t operand;
	/**
	 * Any pointer. It comes back as pier_result.context, wherever the result of this
	 * request is returned: by pier_work_poll(), as a failure of a scope
	 * (<pier/scope.h>), or as the one that broke the channel (<pier/recovery.h>).
	 */
	void *context;
};

/**
 * Post a request, as pier_channel_post_send(), pier_channel_post_recv(),
 * pier_channel_post_write() and pier_channel_post_read() do.
 *
 * request   borrowed for the call, with everything it points to
 * ret_work  as for pier_channel_post_send()
 *
 * An atomic changes 8 bytes of the peer, as a number in the peer's byte order, and
 * returns the previous value in this host's byte order. The remote address must be a
 * multiple of 8, the remote range at least 8 bytes long (the rest is not touched), and
 * the elements 8 bytes in total. Atomics are atomic with respect to each other on one
 * device. They are atomic with respect to the peer's CPU only if the peer's device
 * guarantees it (atomic_cap of ibv_query_device(3)).
 *
 * A write or read of more elements than fit into one request, or with a remote vector, is
 * split into as few requests as possible. A request ends at the end of a remote part,
 * after max_send_sge elements (reads: also after max_sge_rd of ibv_query_device(3)), or
 * at the port's max_msg_size. Elements and parts of length 0 are skipped. The rest of a
 * remote vector that is longer than the elements is not touched.
 *
 * The requests are in the order of the bytes, and only the last one has a handle and
 * carries the immediate data. They complete in order, so its completion is the completion
 * of all (InfiniBand Architecture Specification, volume 1, 9.5). If an earlier request
 * fails, the last one ends with -ECANCELED, and the error message gives the cause. The
 * result's byte_length is that of the last request.
 *
 * All arguments are checked before anything is posted. If the device then refuses a
 * request after it accepted others, which is not expected, the posted requests are
 * stopped and the channel is broken. The memory is then safe to reuse, a partial
 * transfer cannot be mistaken for a complete one, and the number of bytes that arrived
 * is unknown.
 *
 * Errors: those of pier_channel_post_send() and pier_channel_post_write(); -ERANGE also
 * if the sum of the remote parts, or the end of one, exceeds 64 bits; -EAGAIN also if the
 * send queue has too little room for all requests now; -E2BIG the transfer needs more
 * than max_send_wr requests (the error message gives the number):
 * pier_channel_run_request() posts them as there is room; -EINVAL also if the opcode or a
 * flag is unknown, a flag does not apply to the opcode, the elements of an atomic are not
 * 8 bytes in total, or its address is not a multiple of 8; -EOPNOTSUPP also for an atomic
 * if the device has no atomics, and for an invalidation if the device has no memory
 * windows.
 */
PIER_API int pier_channel_post_request(struct pier_channel *channel,
				       const struct pier_request *request,
				       struct pier_work *ret_work);

/**
 * Post a request and wait until it has completed, as pier_channel_send(),
 * pier_channel_recv(), pier_channel_write() and pier_channel_read() do.
 *
 * timeout_ms  for all of it
 * ret_result  may be NULL; as for pier_channel_recv()
 *
 * A write or read that pier_channel_post_request() would split may need any number of
 * requests: they are posted as the send queue has room for them. After an error that is
 * not one of its arguments the channel is then broken, nothing is in flight, and the
 * number of bytes that arrived is unknown.
 *
 * Errors: those of pier_channel_post_request() except -E2BIG, and -EAGAIN only if the
 * send queue takes no request at all; those of pier_channel_send(); if one of several
 * requests failed, its error, or that of a request on the channel that failed earlier.
 */
PIER_API int pier_channel_run_request(struct pier_channel *channel,
				      const struct pier_request *request, int timeout_ms,
				      struct pier_result *ret_result);

/**
 * Post many requests in the given order under one doorbell. The doorbell is rung once
 * for up to 32 requests, and the device completes only the last one.
 *
 * requests, count  borrowed for the call; 1 to max_send_wr
 * ret_work         handle of all of them, or NULL
 *
 * The requests complete in order, so the completion of the last is the completion of
 * all. If an earlier request fails, the last one ends with -ECANCELED, and the error
 * message gives the cause. The result is that of the last request. No request is split
 * here: too many elements, or a remote vector, fail with -EINVAL. Receives are refused.
 *
 * All arguments are checked before anything is posted. If the device then refuses a
 * request after it accepted others, which is not expected, the posted requests are
 * stopped and the channel is broken, as for pier_channel_post_request().
 *
 * Errors: those of pier_channel_post_request(), with the number of the request in the
 * error message; -EINVAL count is 0; -E2BIG count is more than max_send_wr; -EAGAIN the
 * send queue has too little room now: see pier_channel_send_room().
 */
PIER_API int pier_channel_post_batch(struct pier_channel *channel,
				     const struct pier_request *requests, uint32_t count,
				     struct pier_work *ret_work);

/** One element, and the part of the peer's memory to write it to. Frozen. */
struct pier_write_pair {
	struct pier_gather gather;
	struct pier_remote remote; /**< at least as long as the element */
};

/** One element, and the part of the peer's memory to read into it. Frozen. */
struct pier_read_pair {
	struct pier_scatter scatter;
	struct pier_remote remote; /**< at least as long as the element */
};

/**
 * Post many plain writes, or reads, of one element each. Like pier_channel_post_batch(),
 * but cheaper, for the most common kind of batch.
 *
 * pairs, count  borrowed for the call; 1 to max_send_wr
 * ret_work      as for pier_channel_post_batch()
 *
 * Errors: those of pier_channel_post_batch().
 */
PIER_API int pier_channel_post_writes(struct pier_channel *channel,
				      const struct pier_write_pair *pairs, uint32_t count,
				      struct pier_work *ret_work);
PIER_API int pier_channel_post_reads(struct pier_channel *channel,
				     const struct pier_read_pair *pairs, uint32_t count,
				     struct pier_work *ret_work);

/**
 * Return how many more requests the send queue has room for, without asking the device.
 * Requests that have completed count until their completions are collected. In a scope
 * with a window (<pier/scope.h>), posting waits for room. On a channel that is not
 * connected or is broken, posting fails whatever the room. Cannot fail.
 */
PIER_API uint32_t pier_channel_send_room(const struct pier_channel *channel);

PIER_END_DECLS

#endif
