/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>

#include "soft.h"

enum {
	GENERATION_BITS = 12,
	GENERATION_MASK = (1 << GENERATION_BITS) - 1
};

struct soft_mr *pier_soft_find_key(const struct soft_mr_table *table, uint32_t key)
{
	uint32_t index = key >> GENERATION_BITS;
	const struct soft_mr_slot *slot;

	if (index >= table->capacity)
		return NULL;
	slot = &table->slots[index];
	return slot->generation == (key & GENERATION_MASK) ? slot->mr : NULL;
}

/* Slot 0 stays empty, so that no key is 0 and 0 can end the free list. */
static bool grow(struct soft_mr_table *table)
{
	uint32_t capacity = table->capacity ? table->capacity * 2 : 64;
	struct soft_mr_slot *slots;
	uint32_t generation;

	if (capacity > SOFT_MAX_MR || !pier_soft_random(&generation, sizeof(generation)))
		return false;
	slots = realloc(table->slots, capacity * sizeof(*slots));
	if (!slots)
		return false;
	table->slots = slots;
	for (uint32_t i = table->capacity; i < capacity; i++) {
		slots[i].mr = NULL;
		slots[i].generation = generation & GENERATION_MASK;
		slots[i].next_free = i + 1 < capacity ? i + 1 : 0;
	}
	table->first_free = table->capacity ? table->capacity : 1;
	table->last_free = capacity - 1;
	table->capacity = capacity;
	return true;
}

bool pier_soft_take_key(struct soft_mr_table *table, struct soft_mr *mr)
{
	uint32_t index;

	if (table->first_free == 0 && !grow(table))
		return false;
	index = table->first_free;
	table->first_free = table->slots[index].next_free;
	table->slots[index].mr = mr;
	mr->ibv.lkey = index << GENERATION_BITS | table->slots[index].generation;
	mr->ibv.rkey = mr->ibv.lkey;
	return true;
}

void pier_soft_release_key(struct soft_mr_table *table, const struct soft_mr *mr)
{
	uint32_t index = mr->ibv.lkey >> GENERATION_BITS;
	struct soft_mr_slot *slot = &table->slots[index];

	slot->mr = NULL;
	slot->generation = (slot->generation + 1) & GENERATION_MASK;
	slot->next_free = 0;
	if (table->first_free == 0)
		table->first_free = index;
	else
		table->slots[table->last_free].next_free = index;
	table->last_free = index;
}
