/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TRANSFER_ENDS_H
#define PIER_TRANSFER_ENDS_H

#include <pier/receiver.h>
#include <pier/transfer.h>

#include "drive.h"
#include "remaining.h"
#include "rail.h"
#include "stream/stream.h"

/* The two ends, a transfer and a receiver, and what each has if it is a stream. */

/* A chunk of a failed rail. It may be repeated when the peer has stopped the rail. */
struct pier_held_chunk {
	uint32_t rail;
	struct pier_range range;
};

/*
 * The sending end of a stream. A byte may be posted when the receiver has released the
 * one before it in the buffer, and no request that may still write that one is in flight.
 */
struct pier_send_stream {
	struct pier_stream base;
	bool finished, end_told;
	bool answered;	  /* the receiver knows the end, and has released everything */
	uint64_t stopped; /* a bit for each rail that the peer has stopped */
	bool doubtful;	  /* a rail has been stopped just now */
	struct pier_rail_base *notes; /* the receives of each rail */
	struct pier_held_chunk *held; /* room for all chunks in flight */
	uint32_t held_count;
};

/* A chunk that a rail has read, and that is still to be copied to device memory. */
struct pier_read_chunk {
	uint32_t rail; /* its index */
	struct pier_flight chunk;
};

/*
 * A byte of a transfer is in one of three places: not yet posted (remaining), in flight
 * (of a rail), or done, which is only a count. During a step some bytes are
 * between the second and the third: see deliver_read_chunks(). With digests, a chunk is
 * in flight until it has been judged, also while it waits for its second read.
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

/* The receiving end of a stream. */
struct pier_recv_stream {
	struct pier_stream base;
	uint64_t arrived; /* bytes without a gap */
	bool ends;	  /* drive.length is the end of the stream */
	bool end_told;	  /* the peer knows that everything is released */
	bool room_told;	  /* the peer knows `told`; otherwise it was reset */
	uint64_t told;	  /* bytes that the peer knows to be released */

	/* The note in flight, and the `released` that it reports. */
	struct pier_channel *channel;
	struct pier_work work;
	uint64_t telling;
};

struct pier_receiver {
	struct pier_drive drive;
	struct pier_receiver_attr attr; /* as given; rails are not kept */
	uint64_t *blocks;		/* a bit for each block that has arrived */
	int64_t stall_ns, active_at;
	struct pier_recv_stream stream;
	bool lost; /* bytes arrived that could not be copied */
};

/* Whether a block of the memory has arrived. */
static inline bool pier_receiver_has_block(const struct pier_receiver *receiver,
					   uint64_t block)
{
	return receiver->blocks[block / 64] >> (block % 64) & 1;
}

#endif
