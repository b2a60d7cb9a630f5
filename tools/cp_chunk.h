/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_CHUNK_H
#define PIER_TOOLS_CP_CHUNK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <pier/channel.h>

#include "cp_link.h"
#include "cp_workers.h"

/*
 * Chunk number n lives in slot n % depth of either side. The sender writes it
 * there, and sends an announcement behind it: a queue pair delivers in order,
 * so who has the announcement has the data. The receiver sends the number back
 * when it has no more use for the slot: the sender's credit for the next chunk.
 */

enum {
	ANNOUNCEMENT_SIZE = 24,
	CREDIT_SIZE = 8,
	/* Checked and read or written piece by piece, while the cache has it. */
	PIECE = 256 * 1024,
};

struct slot {
	struct job job;
	void *owner;
	uint64_t index; /* the chunk in it */
	size_t length;
	uint64_t checksum;
	enum slot_state {
		SLOT_FREE,
		SLOT_WORKING, /* with the workers */
		SLOT_READY,   /* read, not yet posted */
		SLOT_POSTED,
	} state;
	bool sent;     /* the NIC has no more use for our memory */
	bool credited; /* the receiver has no more use for its own */
	struct pier_work send, receive;
	uint8_t *bounce; /* where the CPU does not reach the buffer, or NULL */
	struct failure failure;
};

/* Slots as the link has them, with their receives posted; NULL on failure. */
struct slot *open_slots(struct link *link, void *owner, void (*run)(struct job *job),
			struct failure *failure);
void close_slots(const struct link *link, struct slot *slots);

/* Where the CPU has the slot's data, or will put it. */
uint8_t *slot_data(const struct link *link, const struct slot *slot);
/*
 * Move it between there and the buffer, if that is not one and the same, and between
 * the buffer and what the NIC has of it, if the region is staged.
 */
int slot_to_buffer(struct link *link, struct slot *slot);
int slot_from_buffer(struct link *link, struct slot *slot);

#endif
