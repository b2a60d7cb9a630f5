/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "slot.h"
#include "util/error.h"

enum {
	NO_SLOT = PIER_SLOTS_MAX
};

static uint32_t index_of(uint64_t id)
{
	return (uint32_t)(id & (PIER_SLOTS_MAX - 1));
}

static uint32_t *free_list(struct pier_slots *slots, bool receive)
{
	return receive ? &slots->free_recv : &slots->free_send;
}

int pier_init_slots(struct pier_slots *slots, uint32_t sends, uint32_t receives,
		    uint64_t generation)
{
	uint32_t count = sends + receives;

	assert(count <= PIER_SLOTS_MAX);
	*slots = (struct pier_slots){
		.slots = calloc(count, sizeof(*slots->slots)),
		.count = count,
		.sends = sends,
		.free_send = NO_SLOT,
		.free_recv = NO_SLOT,
	};
	if (!slots->slots)
		return pier_fail(ENOMEM, "no memory for %u requests", count);
	for (uint32_t i = count; i-- > 0;) {
		slots->slots[i].id = generation << PIER_SLOT_BITS | i;
		pier_give_slot(slots, &slots->slots[i]);
	}
	return 0;
}

void pier_free_slots(struct pier_slots *slots)
{
	free(slots->slots);
	slots->slots = NULL;
}

struct pier_slot *pier_take_slot(struct pier_slots *slots, bool receive)
{
	uint32_t *first = free_list(slots, receive);
	struct pier_slot *slot;

	if (*first == NO_SLOT)
		return NULL;
	slot = &slots->slots[*first];
	*first = slot->next;
	slot->id += PIER_SLOTS_MAX; /* the next generation; wraps after 2^44 */
	return slot;
}

void pier_give_slot(struct pier_slots *slots, struct pier_slot *slot)
{
	uint32_t index = (uint32_t)(slot - slots->slots);
	uint32_t *first = free_list(slots, index >= slots->sends);

	slot->state = PIER_SLOT_FREE;
	slot->next = *first;
	*first = index;
}

struct pier_slot *pier_find_slot(const struct pier_slots *slots, uint64_t id)
{
	uint32_t index = index_of(id);

	if (index >= slots->count || slots->slots[index].id != id ||
	    slots->slots[index].state == PIER_SLOT_FREE)
		return NULL;
	return &slots->slots[index];
}

void pier_slot_posted(struct pier_slots *slots, struct pier_slot *slot, bool watched)
{
	slot->state = watched ? PIER_SLOT_POSTED : PIER_SLOT_UNWATCHED;
	slots->outstanding++;
}

void pier_slot_done(struct pier_slots *slots, struct pier_slot *slot,
		    const struct pier_result *result)
{
	slots->outstanding--;
	if (slot->state == PIER_SLOT_UNWATCHED) {
		pier_give_slot(slots, slot);
		return;
	}
	slot->result = *result;
	slot->state = PIER_SLOT_DONE;
}
