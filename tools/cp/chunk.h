/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_CHUNK_H
#define PIER_TOOLS_CP_CHUNK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <pier/channel.h>

#include "digest.h"
#include "link.h"
#include "workers.h"

/*
 * Chunk number n uses slot n % depth of either side. The sender writes its data
 * there, and sends an announcement behind it: a queue pair delivers in order, so
 * a receiver that has the announcement also has the data. The receiver returns
 * the number when it no longer needs the slot: the sender's credit for the next
 * chunk.
 *
 * A peer that has the slot's key can change its bytes at any time. The workers
 * therefore work on a piece of private memory: what was hashed is what is written,
 * and the kernel reads and writes files from ordinary pages, which it can pin.
 */

enum {
	ANNOUNCEMENT_SIZE = 24 + CP_TAG_SIZE,
	CREDIT_SIZE = 8,
	/* Private memory of a worker; stays in the cache between its steps. */
	PIECE_SIZE = 256 * 1024,
};

struct slot {
	struct job job;
	void *owner;
	struct chunk chunk;
	uint8_t tag[CP_TAG_SIZE]; /* the sender's */
	enum slot_state {
		SLOT_FREE,
		SLOT_WORKING, /* with the workers */
		SLOT_READY,   /* read, not yet posted */
		SLOT_POSTED,
	} state;
	bool sent;     /* the NIC no longer needs our memory */
	bool credited; /* the receiver no longer needs its own */
	struct pier_work send, receive;
	struct failure failure;
};

/* Slots as the link has them, with their receives posted; NULL on failure. */
struct slot *open_slots(struct link *link, void *owner, job_function *run,
			struct failure *failure);

/* The number of the chunk's slot. */
uint32_t slot_number(const struct link *link, const struct slot *slot);
/* The length of the piece that begins at `done` of the chunk. */
size_t piece_length(const struct slot *slot, uint64_t done);

/* Copy a piece between private memory and the slot; any thread. */
int put_piece(struct link *link, struct slot *slot, uint64_t done, const void *piece);
int get_piece(struct link *link, struct slot *slot, uint64_t done, void *ret_piece);
/* After the last piece was put: the NIC may read the slot. */
int sync_put_pieces(struct link *link, struct slot *slot);
/* Before the first piece is got: what the NIC wrote is in the slot. */
int sync_before_get(struct link *link, struct slot *slot);

/* The announcement of the slot's chunk: number, length, whether a hole, tag. */
void store_announcement(const struct slot *slot, uint8_t *ret_message);
/* Everything but the offset, which the message does not have. */
void load_announcement(const uint8_t *message, struct chunk *ret_chunk, uint8_t *ret_tag);

#endif
