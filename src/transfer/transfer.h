/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TRANSFER_TRANSFER_H
#define PIER_TRANSFER_TRANSFER_H

#include <pier/transfer.h>

#include "drive.h"
#include "remaining.h"
#include "send_rail.h"
#include "stream/send_stream.h"

/* A chunk that a rail has read, and that is still to be copied to device memory. */
struct pier_read_chunk {
	uint32_t rail; /* its index */
	struct pier_flight chunk;
};

/*
 * A byte of a transfer is in one of three places: not yet posted (remaining), in flight
 * (in the ring of a rail), or done, which is only a count. During a step some bytes are
 * between the second and the third: see deliver_read_chunks().
 */
struct pier_transfer {
	struct pier_drive drive;
	struct pier_transfer_attr attr; /* as given; rails and state are not kept */
	struct pier_remaining remaining;
	uint32_t in_flight;
	struct pier_read_chunk *read_chunks; /* room for all chunks in flight */
	uint32_t read_chunk_count;

	struct pier_send_stream stream;

	bool notified;		/* the peer was notified */
	bool notification_sent; /* the request for it is in flight */

	uint64_t reported; /* to attr.progress */
	int64_t reported_at;
	bool reported_end;
};

static inline struct pier_send_rail *pier_transfer_rail(
	const struct pier_transfer *transfer, uint32_t index)
{
	return &((struct pier_send_rail *)transfer->drive.rails)[index];
}

#endif
