/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>

#include "cp_chunk.h"

static int open_slot(struct link *link, struct slot *slot, uint32_t number)
{
	if (!link->mapped) {
		slot->bounce = malloc(link->chunk);
		if (!slot->bounce)
			return fail(&slot->failure, EXIT_FILE, "out of memory");
	}
	if (link_recv(link, number, &slot->receive) < 0)
		return fail_pier(&slot->failure, EXIT_DEVICE);
	return 0;
}

struct slot *open_slots(struct link *link, void *owner, void (*run)(struct job *job),
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
		if (open_slot(link, &slots[i], i) < 0) {
			*failure = slots[i].failure;
			close_slots(link, slots);
			return NULL;
		}
	}
	return slots;
}

void close_slots(const struct link *link, struct slot *slots)
{
	uint32_t i;

	for (i = 0; slots && i < link->depth; i++)
		free(slots[i].bounce);
	free(slots);
}

static size_t slot_offset(const struct link *link, const struct slot *slot)
{
	return (size_t)(slot->index % link->depth) * link->chunk;
}

uint8_t *slot_data(const struct link *link, const struct slot *slot)
{
	return link->mapped ? link->mapped + slot_offset(link, slot) : slot->bounce;
}

int slot_to_buffer(struct link *link, struct slot *slot)
{
	size_t offset = slot_offset(link, slot);
	int error = 0;

	if (!link->mapped)
		error = pier_copy_to_buffer(link->buffer, offset, slot->bounce,
					    slot->length);
	if (!error)
		error = pier_sync_for_nic(link->mr, offset, slot->length);
	return error ? fail_pier(&slot->failure, EXIT_DEVICE) : 0;
}

int slot_from_buffer(struct link *link, struct slot *slot)
{
	size_t offset = slot_offset(link, slot);
	int error = pier_sync_for_device(link->mr, offset, slot->length);

	if (!error && !link->mapped)
		error = pier_copy_from_buffer(link->buffer, offset, slot->bounce,
					      slot->length);
	return error ? fail_pier(&slot->failure, EXIT_DEVICE) : 0;
}
