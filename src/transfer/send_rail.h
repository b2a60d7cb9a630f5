/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TRANSFER_SEND_RAIL_H
#define PIER_TRANSFER_SEND_RAIL_H

#include <infiniband/verbs.h>
#include <stdbool.h>

#include <pier/transfer.h>

#include "rail.h"
#include "remaining.h"

/* A part of the peer's memory; `start` is an offset in the transfer. */
struct pier_rail_part {
	uint64_t start;
	struct pier_remote remote;
};

/* One request in flight, or two; without bytes, the notification of the peer. */
struct pier_rail_chunk {
	struct pier_work work;
	uint64_t offset;
	uint32_t length;
	bool stopped; /* with the channel: its handle is used up */
	int error;    /* how it ended */
};

struct pier_send_rail {
	struct pier_rail_base base;
	uint64_t addr;	 /* of byte 0, in the region's iovas */
	uint64_t length; /* of the transfer */
	uint64_t wrap;	 /* of a stream: the bytes of its buffer; otherwise 0 */
	struct pier_rail_part *parts;
	uint32_t part_count;
	bool reads;
	bool announces;		  /* PIER_TRANSFER_ANNOUNCE */
	struct pier_range copied; /* the last range copied to the bounce buffer */
	uint32_t max_sge, max_chunk;
	struct ibv_sge *elements; /* max_sge + 1, for the chunk being posted */

	struct pier_rail_chunk *ring;
	int64_t stall_ns;      /* the longest time without progress */
	int64_t active_at;     /* time of the last progress */
	int64_t queue_full_at; /* since when others' requests fill the queue; 0: no */
};

/*
 * Check what the caller gave, and copy it.
 *
 * index  for error sentences
 *
 * Errors: those of pier_transfer_begin(). Nothing is left to free.
 */
int pier_send_rail_init(struct pier_send_rail *rail, uint32_t index,
			const struct pier_rail *given,
			const struct pier_transfer_attr *attr);
void pier_send_rail_free(struct pier_send_rail *rail);

/* One rail of a transfer: the peer's memory, and the chunks in flight. */

/*
 * Post a chunk of at most range.length bytes, starting at range.offset.
 *
 * Returns its length; 0 if there is no room; or the error with which the rail failed.
 */
int64_t pier_send_rail_post(struct pier_send_rail *rail, struct pier_range range,
			    int64_t now);

/* Post the notification of the peer. 1 posted, 0 no room, or an error as above. */
int pier_send_rail_notify(struct pier_send_rail *rail, uint32_t immediate, int64_t now);

/*
 * Take the oldest chunk, if it has completed; if with an error, the rail has failed.
 * Bytes that were read have not arrived before pier_send_rail_deliver().
 *
 * Returns 1 and the chunk, or 0.
 */
int pier_send_rail_take(struct pier_send_rail *rail, int64_t now,
			struct pier_rail_chunk *ret_chunk);

/* Whether pier_send_rail_deliver() of a chunk has bytes to copy, which takes long. */
bool pier_send_rail_copies(const struct pier_send_rail *rail,
			   const struct pier_rail_chunk *chunk);

/* Deliver a chunk that was taken without an error. 0, or how the rail failed. */
int pier_send_rail_deliver(struct pier_send_rail *rail,
			   const struct pier_rail_chunk *chunk);

/*
 * If the rail made no progress for too long, it fails. Its requests in flight are
 * cancelled and can be taken.
 */
void pier_send_rail_check(struct pier_send_rail *rail, int64_t now);

/* The time without progress counts from now. */
void pier_send_rail_restart_stall(struct pier_send_rail *rail, int64_t now);

/* The rail fails. Its requests in flight are cancelled and can be taken. */
void pier_send_rail_stop(struct pier_send_rail *rail, int error, const char *sentence);

/* When pier_send_rail_check() may find something; INT64_MAX: never. */
int64_t pier_send_rail_deadline(const struct pier_send_rail *rail);

#endif
