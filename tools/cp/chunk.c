/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include <string.h>

#include "chunk.h"

struct slot *open_slots(struct link *link, void *owner, job_function *run,
			struct failure *failure)
{
	struct slot *slots = calloc(link->depth, sizeof(*slots));
	uint32_t i;

	if (!slots) {
		fail(failure, EXIT_FILE, "out of memory");
		return NULL;
	}
	for (i = 0; i < link->depth; i++) {
		slots[i].job.run = run;
		slots[i].owner = owner;
		if (link_recv(link, i, &slots[i].receive) < 0) {
			fail_pier(failure, EXIT_DEVICE);
			free(slots);
			return NULL;
		}
	}
	return slots;
}

int restart_receives(struct link *link, struct slot *slots, uint64_t first)
{
	for (uint32_t i = 0; i < link->depth; i++) {
		uint32_t number = (uint32_t)((first + i) % link->depth);

		/* Its result, if nobody has fetched it, would take a place. */
		pier_work_drop(link_rail(link, number)->channel, slots[number].receive);
		if (link_recv(link, number, &slots[number].receive) < 0)
			return -1;
	}
	return 0;
}

uint32_t slot_number(const struct link *link, const struct slot *slot)
{
	return (uint32_t)(slot->chunk.number % link->depth);
}

static size_t slot_offset(const struct link *link, const struct slot *slot)
{
	return (size_t)slot_number(link, slot) * link->chunk;
}

size_t piece_length(const struct slot *slot, uint64_t done)
{
	uint64_t left = slot->chunk.length - done;

	return left < PIECE_SIZE ? (size_t)left : PIECE_SIZE;
}

/* Memory behind a dma-buf may also need DMA_BUF_IOCTL_SYNC: <pier/buffer.h>. */
uint8_t *slot_memory(const struct link *link, const struct slot *slot)
{
	const char *memory = link->report.memory;
	void *pointer;

	if ((strcmp(memory, "host") != 0 && strcmp(memory, "memfd") != 0) ||
	    pier_buffer_map(link->buffer, &pointer) < 0)
		return NULL;
	return (uint8_t *)pointer + slot_offset(link, slot);
}

int put_piece(struct link *link, struct slot *slot, uint64_t done, const void *piece)
{
	size_t offset = slot_offset(link, slot) + (size_t)done;

	if (pier_buffer_copy_to(link->buffer, offset, piece, piece_length(slot, done)) <
	    0)
		return fail_pier(&slot->failure, EXIT_DEVICE);
	return 0;
}

int get_piece(struct link *link, struct slot *slot, uint64_t done, void *ret_piece,
	      size_t length)
{
	size_t offset = slot_offset(link, slot) + (size_t)done;

	if (pier_buffer_copy_from(link->buffer, offset, ret_piece, length) < 0)
		return fail_pier(&slot->failure, EXIT_DEVICE);
	return 0;
}

int sync_put_pieces(struct link *link, struct slot *slot)
{
	const struct rail *rail = link_rail(link, slot_number(link, slot));

	int error = link->ipc ? link_copy(link, slot_number(link, slot),
					  (size_t)slot->chunk.length)
			      : pier_mr_sync_for_nic(rail->mr, slot_offset(link, slot),
						     slot->chunk.length);

	return error < 0 ? fail_pier(&slot->failure, EXIT_DEVICE) : 0;
}

int sync_before_get(struct link *link, struct slot *slot)
{
	const struct rail *rail = link_rail(link, slot_number(link, slot));

	/* The sender announces a chunk after its copy is done. */
	if (link->ipc)
		return 0;
	if (pier_mr_sync_for_device(rail->mr, slot_offset(link, slot),
				    slot->chunk.length) < 0)
		return fail_pier(&slot->failure, EXIT_DEVICE);
	return 0;
}

void store_announcement(const struct slot *slot, uint8_t *ret_message)
{
	store_u64(ret_message, slot->chunk.number);
	store_u64(ret_message + 8, slot->chunk.length);
	store_u64(ret_message + 16, slot->chunk.hole);
	memcpy(ret_message + 24, slot->tag, CP_TAG_SIZE);
}

void load_announcement(const uint8_t *message, struct chunk *ret_chunk, uint8_t *ret_tag)
{
	ret_chunk->number = load_u64(message);
	ret_chunk->length = load_u64(message + 8);
	ret_chunk->hole = load_u64(message + 16) != 0;
	memcpy(ret_tag, message + 24, CP_TAG_SIZE);
}
