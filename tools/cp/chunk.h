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
 * Chunk number n uses slot n % depth on both sides. The sender writes the data into
 * the receiver's slot, then sends an announcement. A queue pair delivers in order, so
 * the data has arrived when the announcement does. When the receiver no longer needs
 * the slot it sends the number back, as the sender's credit for the next chunk.
 *
 * A peer that has the slot's key can change its bytes at any time. The workers
 * therefore copy each piece to private memory before they hash and write it. This
 * memory also consists of ordinary pages, which the kernel can pin for file I/O.
 */

enum {
	ANNOUNCEMENT_SIZE = 24 + CP_TAG_SIZE,
	CREDIT_SIZE = 8,
	/* Private memory of a worker; small enough to stay in the CPU cache. */
	PIECE_SIZE = 256 * 1024,
};

struct slot {
	struct job job;
	void *owner;
	struct chunk chunk;
	uint8_t tag[CP_TAG_SIZE]; /* the sender's */
	enum slot_state {
		SLOT_FREE,
		SLOT_WORKING, /* owned by a worker */
		SLOT_READY,   /* filled, not yet posted */
		SLOT_POSTED,
	} state;
	bool sent;     /* the NIC no longer needs this side's slot */
	bool credited; /* the receiver no longer needs its slot */
	struct pier_work send, receive;
	struct failure failure;
};

/* Allocate the link's slots and post their receives. Returns NULL on failure. */
struct slot *open_slots(struct link *link, void *owner, job_function *run,
			struct failure *failure);

/*
 * Post the receives of all slots again, after the channel was reset. They are used in
 * the order of the slots, from the first on.
 */
int restart_receives(struct link *link, struct slot *slots, uint64_t first);

/* The number of the chunk's slot. */
uint32_t slot_number(const struct link *link, const struct slot *slot);
/* The length of the piece that begins `done` bytes into the chunk. */
size_t piece_length(const struct slot *slot, uint64_t done);

/*
 * The slot's bytes, if they are plain host memory; otherwise NULL. A sender may read the
 * file into it: the peer has no right to write there.
 */
uint8_t *slot_memory(const struct link *link, const struct slot *slot);

/* Copy a piece between private memory and the slot. Any thread may call these. */
int put_piece(struct link *link, struct slot *slot, uint64_t done, const void *piece);
int get_piece(struct link *link, struct slot *slot, uint64_t done, void *ret_piece,
	      size_t length);
/*
 * Call after the last put_piece(): makes the slot visible to the NIC; with ipc, copies it
 * to the receiver's.
 */
int sync_put_pieces(struct link *link, struct slot *slot);
/* Call before the first get_piece(): makes the NIC's writes visible. */
int sync_before_get(struct link *link, struct slot *slot);

/* The announcement of the slot's chunk: number, length, hole flag, tag. */
void store_announcement(const struct slot *slot, uint8_t *ret_message);
/* Read an announcement. It has no offset, so chunk->offset is not set. */
void load_announcement(const uint8_t *message, struct chunk *ret_chunk, uint8_t *ret_tag);

#endif
