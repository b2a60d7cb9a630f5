/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>

#include "keys.h"
#include "core/checked.h"
#include "core/error.h"
#include "provider/soft/limits.h"
#include "segments.h"

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

	if (capacity > SOFT_MAX_MR ||
	    getrandom(&generation, sizeof(generation), 0) != sizeof(generation))
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

void pier_soft_free_keys(struct soft_mr_table *table)
{
	free(table->slots);
	free(table->requested);
}

struct soft_mr *pier_soft_find_mr(const struct ibv_pd *pd, uint32_t key, uint64_t address,
				  uint64_t length, int access)
{
	struct soft_mr *mr = pier_soft_find_key(soft_pd(pd)->mrs, key);

	if (!mr || mr->ibv.pd != pd || (mr->access & access) != access ||
	    address < mr->iova ||
	    !pier_range_fits(address - mr->iova, length, mr->ibv.length))
		return NULL;
	return mr;
}

/*
 * The rules are those of rxe_mw.c, and two that rxe leaves out: the bounds of a window
 * hold, and only its queue pair invalidates it.
 */

enum {
	WRITING = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC,
	PEERS_RIGHTS = IBV_ACCESS_REMOTE_READ | WRITING
};

struct ibv_mw *pier_soft_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct soft_pd *owner = soft_pd(pd);
	struct soft_mw *mw;
	int error;

	if (type != IBV_MW_TYPE_1 && type != IBV_MW_TYPE_2)
		return pier_null_with(
			pier_fail(EINVAL, "soft0: there are no memory windows of type %d",
				  (int)type));
	mw = calloc(1, sizeof(*mw));
	if (!mw)
		return pier_null_with(-ENOMEM);
	mw->ibv.context = pd->context;
	mw->ibv.pd = pd;
	mw->ibv.type = type;
	pier_list_init(&mw->link);
	pier_soft_lock(owner->engine);
	error = take_slot(owner->mrs, NULL, mw, &mw->rkey);
	mw->ibv.rkey = mw->ibv.handle = mw->rkey;
	pier_soft_unlock(owner->engine);
	if (error) {
		free(mw);
		return pier_null_with(error);
	}
	atomic_fetch_add(&owner->users, 1);
	return &mw->ibv;
}

static void unbind_window(struct soft_mw *mw)
{
	if (mw->mr)
		mw->mr->windows--;
	mw->mr = NULL;
	mw->reach = NULL;
	pier_list_remove(&mw->link);
}

/* Also a window that is bound, as with hardware. */
int pier_soft_dealloc_mw(struct ibv_mw *ibv_mw)
{
	struct soft_mw *mw = (struct soft_mw *)ibv_mw;
	struct soft_pd *pd = soft_pd(ibv_mw->pd);
	uint32_t index;

	pier_soft_lock(pd->engine);
	index = mw->rkey >> SOFT_GENERATION_BITS;
	unbind_window(mw);
	/* The next one in this slot must differ in the bits that the caller leaves. */
	pd->mrs->slots[index].generation |= CHOSEN_MASK;
	free_slot(pd->mrs, index);
	pier_soft_unlock(pd->engine);
	atomic_fetch_sub(&pd->users, 1);
	free(mw);
	return 0;
}

/* As in hardware, the windows still keep their regions from being deregistered. */
void pier_soft_detach_windows(struct soft_reach *reach)
{
	while (!pier_list_empty(&reach->windows)) {
		struct soft_mw *mw = pier_container_of(reach->windows.next,
						       struct soft_mw, link);

		mw->reach = NULL;
		pier_list_remove(&mw->link);
	}
}

/* A window of type 1 is open to all queue pairs of its PD. */
static bool window_holds(const struct soft_mw *mw, const struct soft_reach *reach,
			 uint32_t key)
{
	if (!mw || mw->rkey != key || !mw->mr)
		return false;
	return mw->ibv.type == IBV_MW_TYPE_1 ? mw->ibv.pd == reach->pd
					     : mw->reach == reach;
}

struct soft_mr *pier_soft_find_range(const struct soft_reach *reach, uint32_t key,
				     uint64_t address, uint64_t length, int access)
{
	const struct soft_mr_table *table = soft_pd(reach->pd)->mrs;
	struct soft_mr *mr = pier_soft_find_mr(reach->pd, key, address, length, access);
	const struct soft_mw *mw;

	/* Local accesses never use a window. */
	if (mr || !(access & PEERS_RIGHTS))
		return mr;
	mw = pier_soft_find_window(table, key);
	if (!window_holds(mw, reach, key) || (mw->access & access) != access)
		return NULL;
	if (address < mw->address ||
	    !pier_range_fits(address - mw->address, length, mw->length))
		return NULL;
	return mw->mr;
}

/* IBV_ACCESS_ZERO_BASED is refused too: addresses in a window are those of its region. */
static bool may_bind(const struct soft_reach *reach, const struct soft_bind *bind,
		     const struct soft_mw *mw, const struct soft_mr *mr)
{
	/* Local writing is the region's right, and no right of a window's peer. */
	if (bind->access & ~(PEERS_RIGHTS | IBV_ACCESS_LOCAL_WRITE))
		return false;
	if (mw->ibv.pd != reach->pd)
		return false;
	/*
	 * Of type 2: a bound window (o10-37.2.30), and invalidation by binding zero bytes
	 * (o10-37.2.40). One of type 1 is bound again, and to nothing by zero bytes.
	 */
	if (mw->ibv.type == IBV_MW_TYPE_1 && bind->length == 0)
		return true;
	if (!mr || (mw->ibv.type == IBV_MW_TYPE_2 && (mw->mr || bind->length == 0)))
		return false;
	/* C10-73, C10-74, C10-75. */
	if (!(mr->access & IBV_ACCESS_MW_BIND))
		return false;
	if ((bind->access & WRITING) && !(mr->access & IBV_ACCESS_LOCAL_WRITE))
		return false;
	return true;
}

bool pier_soft_bind_window(struct soft_reach *reach, const struct soft_bind *bind)
{
	const struct soft_mr_table *table = soft_pd(reach->pd)->mrs;
	struct soft_mw *mw = pier_soft_find_window(table, bind->window);
	struct soft_mr *mr = pier_soft_find_mr(reach->pd, bind->region, bind->address,
					       bind->length, 0);

	if (!mw || !may_bind(reach, bind, mw, mr))
		return false;
	if (pier_soft_find_window(table, bind->key) != mw)
		return false;
	unbind_window(mw);
	mw->rkey = bind->key;
	if (bind->length == 0)
		return true;
	mw->mr = mr;
	mw->address = bind->address;
	mw->length = bind->length;
	mw->access = bind->access;
	mr->windows++;
	if (mw->ibv.type == IBV_MW_TYPE_2) {
		mw->reach = reach;
		pier_list_append(&reach->windows, &mw->link);
	}
	return true;
}

bool pier_soft_invalidate(struct soft_reach *reach, uint32_t key)
{
	struct soft_mw *mw = pier_soft_find_window(soft_pd(reach->pd)->mrs, key);

	/* o10-37.2.26: none of type 1. */
	if (!window_holds(mw, reach, key) || mw->ibv.type == IBV_MW_TYPE_1)
		return false;
	unbind_window(mw);
	return true;
}
