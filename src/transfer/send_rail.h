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

/*
 * One rail of a transfer: the peer's memory, and the chunks in flight. The offset and the
 * length of a flight are those of the chunk in the transfer; without bytes, it is the
 * notification of the peer.
 */
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
};

/*
 * Check what the caller gave, and copy it.
 *
 * index  for error sentences
 *
 * Errors: those of pier_transfer_create(). Nothing is left to free.
 */
int pier_send_rail_init(struct pier_send_rail *rail, uint32_t index,
			const struct pier_rail *given,
			const struct pier_transfer_attr *attr);
void pier_send_rail_free(struct pier_send_rail *rail);

/*
 * Check that announced chunks can end on blocks of the memory at both ends, and cut the
 * rail's longest chunk to blocks. Errors: -EINVAL.
 */
int pier_check_announced_rail(struct pier_send_rail *rail);

/*
 * Post a chunk of at most range.length bytes, starting at range.offset.
 *
 * Returns its length; 0 if there is no room; or the error with which the rail failed.
 */
int64_t pier_send_rail_post(struct pier_send_rail *rail, struct pier_range range,
			    int64_t now);

/* Post the notification of the peer. 1 posted, 0 no room, or an error as above. */
int pier_send_rail_notify(struct pier_send_rail *rail, uint32_t immediate, int64_t now);

/* Whether pier_send_rail_deliver() of a chunk has bytes to copy, which takes long. */
bool pier_send_rail_copies(const struct pier_send_rail *rail,
			   const struct pier_flight *chunk);

/*
 * Deliver a chunk that was taken without an error: bytes that were read have not arrived
 * before. 0, or how the rail failed.
 */
int pier_send_rail_deliver(struct pier_send_rail *rail, const struct pier_flight *chunk);

#endif
