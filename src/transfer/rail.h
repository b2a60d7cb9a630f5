/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TRANSFER_RAIL_H
#define PIER_TRANSFER_RAIL_H

#include <stdbool.h>

#include <infiniband/verbs.h>

#include <pier/transfer.h>

#include "remaining.h"

/*
 * One rail of a transfer: where the bytes are for its channel, and the chunks that it
 * has in flight. Chunks are posted to one send queue, which completes them in order
 * (InfiniBand Architecture Specification, volume 1, 9.5), so they are a ring of which
 * only the oldest is asked for.
 */

/* Of the peer's memory; `start` in the transfer. */
struct pier_rail_part {
	uint64_t start;
	struct pier_remote remote;
};

/* A request in flight. Without bytes: that which tells the peer. */
struct pier_rail_chunk {
	struct pier_work work;
	uint64_t offset;
	uint32_t length;
	bool stopped; /* with the channel: its handle is used up */
	int error;    /* how it ended */
};

struct pier_rail_state {
	struct pier_channel *channel;
	struct pier_mr *mr;
	uint64_t offset, addr; /* in the region and in its iovas, of byte 0 */
	uint64_t length;       /* of the transfer */
	struct pier_rail_part *parts;
	uint32_t part_count;
	bool reads;
	bool announces; /* PIER_TRANSFER_ANNOUNCE */
	/* A part of the region has a bounce buffer: bytes are copied before or after. */
	bool bounced;
	bool direct;		  /* a part of the region is device memory without one */
	struct pier_range copied; /* the last bytes that were, before they are posted */
	bool unflushed; /* bytes came straight into memory that may need a flush */
	bool doubtful;	/* also of what has a bounce buffer now: by rails before a
			   resumption */
	uint32_t max_sge, max_chunk;
	struct ibv_sge *elements; /* max_sge: of the chunk that is being posted */

	struct pier_rail_chunk *ring;
	uint32_t window, first, count;
	uint64_t done;	     /* bytes */
	int64_t stall_ns;    /* how long it may be without a sign of life */
	int64_t alive_at;    /* when it had one */
	int64_t starving_at; /* since when the queue is full of others'; 0: is not */
	int error;
	char sentence[PIER_RAIL_SENTENCE_SIZE];
};

/* The region of one end's rail. Errors: -EINVAL another PD; -ERANGE the bytes leave it.
 */
int pier_rail_check_memory(const struct pier_channel *channel, const struct pier_mr *mr,
			   uint64_t offset, uint64_t length);

/*
 * Check what the caller gave, and copy it.
 *
 * index  for sentences
 *
 * Errors: those of pier_transfer_begin(). Nothing is left.
 */
int pier_rail_init(struct pier_rail_state *rail, uint32_t index,
		   const struct pier_rail *given, const struct pier_transfer_attr *attr);
void pier_rail_free(struct pier_rail_state *rail);

/*
 * Post a chunk of at most range.length bytes, from range.offset on.
 *
 * Returns how many bytes it has; 0 when there is no room; or how the rail has failed.
 */
int64_t pier_rail_post(struct pier_rail_state *rail, struct pier_range range,
		       int64_t now);

/* Post the request that tells the peer. 1 posted, 0 no room, or an error as above. */
int pier_rail_post_notice(struct pier_rail_state *rail, uint32_t immediate, int64_t now);

/*
 * Take the oldest chunk, if it has completed; with an error the rail has failed. What it
 * has brought is not there before pier_rail_land().
 *
 * Returns 1 and the chunk, or 0.
 */
int pier_rail_take(struct pier_rail_state *rail, int64_t now,
		   struct pier_rail_chunk *ret_chunk);

/* Whether pier_rail_land() of a chunk takes long: there is something to copy. */
bool pier_rail_copies(const struct pier_rail_state *rail,
		      const struct pier_rail_chunk *chunk);

/* A chunk that was taken without an error is there; or the rail has failed with this. */
int pier_rail_land(struct pier_rail_state *rail, const struct pier_rail_chunk *chunk);

/* What came straight into memory of a device is visible to it from now on. 0 or -errno.
 */
int pier_rail_flush(struct pier_rail_state *rail);

/*
 * The rail has failed: nothing more is posted. Its error and sentence are those of the
 * first time; what broke the channel is told rather than that something was flushed.
 */
void pier_rail_fail(struct pier_rail_state *rail, int error, const char *sentence);

/*
 * If the rail has been without a sign of life for too long, it fails; what it has in
 * flight is stopped, and can be taken.
 */
void pier_rail_check(struct pier_rail_state *rail, int64_t now);

/* When pier_rail_check() may find something; INT64_MAX: never. */
int64_t pier_rail_deadline(const struct pier_rail_state *rail);

#endif
