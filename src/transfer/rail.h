/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TRANSFER_RAIL_H
#define PIER_TRANSFER_RAIL_H

#include <stdbool.h>

#include <pier/transfer.h>

#include "channel/channel.h"
#include "remaining.h"

/*
 * What a rail of a transfer (send_rail.h) and one of a receiver (recv_rail.h) have in
 * common: a channel, the memory at this end, a ring of requests in flight, and how the
 * rail failed. A queue completes in order (InfiniBand Architecture Specification, volume
 * 1, 9.5), so only the oldest request of the ring is polled.
 */
struct pier_rail_base {
	struct pier_channel *channel;
	struct pier_mr *mr;
	uint64_t offset; /* in the region, of byte 0 of the transfer */

	/* A part of the region has a bounce buffer, so bytes are copied. */
	bool bounced;
	/* A part of the region is device memory that the NIC reaches directly. */
	bool direct;
	/* Bytes arrived in memory that may need a flush. */
	bool unflushed;
	/* Flush bounced parts too: earlier rails may have reached them directly. */
	bool doubtful;

	uint32_t size, first, count; /* of the ring; `count` requests are in flight */
	uint64_t done;		     /* bytes */
	int error;		     /* 0, or how the rail failed: -errno */
	char sentence[PIER_RAIL_SENTENCE_SIZE];
};

/*
 * Check that a channel can move bytes now. Errors: -ECHILD, -ENOTCONN, -EPIPE, -EMSGSIZE,
 * -EOPNOTSUPP, -EINVAL.
 */
int pier_rail_check_channel(const struct pier_channel *channel, bool reads);

/*
 * Check the region of a rail at this end. Errors: -EINVAL it is in another PD; -ERANGE
 * the bytes are outside of it.
 */
int pier_rail_check_memory(const struct pier_channel *channel, const struct pier_mr *mr,
			   uint64_t offset, uint64_t length);

/* An element of at most `length` bytes, which ends at the end of a part of the region. */
struct ibv_sge pier_rail_element(const struct pier_mr *mr, uint64_t addr,
				 uint32_t length);

/* Find out which parts of the region need copies and flushes. */
void pier_rail_classify_memory(struct pier_rail_base *rail);

/* Bytes arrived: copy them out of bounce buffers. 0 or -errno. */
int pier_rail_deliver(struct pier_rail_base *rail, struct pier_range range);

/*
 * Make bytes that arrived directly visible to the device's code. Tried once for the same
 * bytes. 0 or -errno.
 */
int pier_rail_flush(struct pier_rail_base *rail, uint64_t length);

/*
 * Record that the rail failed. Its first error and sentence stay. If the channel knows
 * what broke it, that error replaces the one of a flushed request.
 *
 * Returns whether this was the first failure.
 */
bool pier_rail_record_failure(struct pier_rail_base *rail, int error,
			      const char *sentence);

#endif
