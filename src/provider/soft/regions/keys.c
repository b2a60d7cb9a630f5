/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "keys.h"
#include "core/error.h"
#include "provider/soft/limits.h"
#include "provider/soft/link/auth.h"
#include "region.h"
#include "window.h"

enum {
	GENERATION_MASK = (1 << SOFT_GENERATION_BITS) - 1,
	CHOSEN_MASK = 0xff /* the caller increments it with ibv_inc_rkey(3) */
};

struct soft_mr *pier_soft_find_key(const struct soft_mr_table *table, uint32_t key)
{
	uint32_t index = key >> SOFT_GENERATION_BITS;
	const struct soft_mr_slot *slot;

	if (key <= SOFT_MAX_KEY)
		return table->requested ? table->requested[key] : NULL;
	if (index >= table->capacity)
		return NULL;
	slot = &table->slots[index];
	return slot->generation == (key & GENERATION_MASK) ? slot->mr : NULL;
}

/* Slot 0 stays empty, so that 0 can end the free list. */
static bool grow_table(struct soft_mr_table *table)
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
		slots[i].mw = NULL;
		slots[i].generation = generation & GENERATION_MASK;
		slots[i].next_free = i + 1 < capacity ? i + 1 : 0;
	}
	table->first_free = table->capacity ? table->capacity : SOFT_FIRST_MR;
	table->last_free = capacity - 1;
	table->capacity = capacity;
	return true;
}

static int no_room(void)
{
	return pier_fail(ENOMEM, "soft0: no room for another memory region");
}

static int take_slot(struct soft_mr_table *table, struct soft_mr *mr, struct soft_mw *mw,
		     uint32_t *ret_key)
{
	uint32_t index;

	if (table->first_free == 0 && !grow_table(table))
		return no_room();
	index = table->first_free;
	table->first_free = table->slots[index].next_free;
	table->slots[index].mr = mr;
	table->slots[index].mw = mw;
	*ret_key = index << SOFT_GENERATION_BITS | table->slots[index].generation;
	return 0;
}

static int take_requested(struct soft_mr_table *table, struct soft_mr *mr, uint32_t key)
{
	if (!table->requested)
		table->requested = calloc(SOFT_MAX_KEY + 1, sizeof(*table->requested));
	if (!table->requested)
		return no_room();
	if (table->requested[key])
		return pier_fail(ENOKEY, "soft0: key %u belongs to another region", key);
	table->requested[key] = mr;
	return 0;
}

int pier_soft_take_key(struct soft_mr_table *table, struct soft_mr *mr,
		       const uint32_t *key)
{
	uint32_t taken = key ? *key : 0;
	int error = key ? take_requested(table, mr, taken)
			: take_slot(table, mr, NULL, &taken);

	if (!error)
		mr->ibv.lkey = mr->ibv.rkey = mr->ibv.handle = taken;
	return error;
}

static void free_slot(struct soft_mr_table *table, uint32_t index)
{
	struct soft_mr_slot *slot = &table->slots[index];

	slot->mr = NULL;
	slot->mw = NULL;
	slot->generation = (slot->generation + 1) & GENERATION_MASK;
	slot->next_free = 0;
	if (table->first_free == 0)
		table->first_free = index;
	else
		table->slots[table->last_free].next_free = index;
	table->last_free = index;
}

void pier_soft_release_key(struct soft_mr_table *table, const struct soft_mr *mr)
{
	uint32_t key = mr->ibv.lkey;

	if (key <= SOFT_MAX_KEY)
		table->requested[key] = NULL;
	else
		free_slot(table, key >> SOFT_GENERATION_BITS);
}

struct soft_mw *pier_soft_find_window(const struct soft_mr_table *table, uint32_t key)
{
	uint32_t index = key >> SOFT_GENERATION_BITS;
	const struct soft_mr_slot *slot;

	if (key <= SOFT_MAX_KEY || index >= table->capacity)
		return NULL;
	slot = &table->slots[index];
	return (slot->generation ^ key) & GENERATION_MASK & ~CHOSEN_MASK ? NULL
									 : slot->mw;
}

int pier_soft_take_window_key(struct soft_mr_table *table, struct soft_mw *mw)
{
	int error = take_slot(table, NULL, mw, &mw->rkey);

	if (!error)
		mw->ibv.rkey = mw->ibv.handle = mw->rkey;
	return error;
}

/*
 * The next window in this slot must differ in the bits that the caller does not choose.
 */
void pier_soft_release_window_key(struct soft_mr_table *table, const struct soft_mw *mw)
{
	uint32_t index = mw->rkey >> SOFT_GENERATION_BITS;

	table->slots[index].generation |= CHOSEN_MASK;
	free_slot(table, index);
}

void pier_soft_free_keys(struct soft_mr_table *table)
{
	free(table->slots);
	free(table->requested);
}
