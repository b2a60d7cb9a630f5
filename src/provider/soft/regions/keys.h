/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_KEYS_H
#define PIER_SOFT_KEYS_H

#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "core/list.h"
#include "provider/soft/engine.h"
#include "provider/soft/limits.h"

/*
 * The keys of regions and windows, and what a key reaches. With the engine locked, except
 * for the verbs.
 */

struct soft_mr;
struct soft_mw;

enum {
	SOFT_GENERATION_BITS = 12,
	/* Slots before it would have keys that callers may ask for. */
	SOFT_FIRST_MR = (SOFT_MAX_KEY >> SOFT_GENERATION_BITS) + 1
};

/*
 * The key of slot i is i << 12 | generation. The caller chooses the last 8 bits of a
 * window's key, which leaves 4 for the generation.
 */
struct soft_mr_slot {
	struct soft_mr *mr; /* or a window */
	struct soft_mw *mw;
	uint32_t generation;
	uint32_t next_free;
};

struct soft_mr_table {
	struct soft_mr_slot *slots;
	uint32_t capacity;
	/* Reused oldest first, so that a stale key stays invalid for long. */
	uint32_t first_free, last_free;
	struct soft_mr **requested; /* by key; NULL until the first request */
};

struct soft_mr *pier_soft_find_key(const struct soft_mr_table *table, uint32_t key);

/* `key` NULL: any. 0 or -errno with a sentence. */
int pier_soft_take_key(struct soft_mr_table *table, struct soft_mr *mr,
		       const uint32_t *key);

void pier_soft_release_key(struct soft_mr_table *table, const struct soft_mr *mr);

/* Keys that differ in the last 8 bits only find the same window. */
struct soft_mw *pier_soft_find_window(const struct soft_mr_table *table, uint32_t key);

void pier_soft_free_keys(struct soft_mr_table *table);

struct soft_pd {
	struct ibv_pd ibv;
	atomic_uint users;
	struct soft_engine *engine;
	struct soft_mr_table *mrs; /* of all PDs of the context */
};

static inline struct soft_pd *soft_pd(const struct ibv_pd *pd)
{
	return pier_container_of(pd, struct soft_pd, ibv);
}

/* NULL if the key, the range or the rights do not fit. */
struct soft_mr *pier_soft_find_mr(const struct ibv_pd *pd, uint32_t key, uint64_t address,
				  uint64_t length, int access);

/* The regions and windows that a queue pair and its peer reach. */
struct soft_reach {
	struct ibv_pd *pd;
	struct pier_list windows; /* of type 2, bound to the queue pair */
};

/* A request to bind a window; by keys, since the objects may be gone by then. */
struct soft_bind {
	uint32_t window, region, key;
	int access;
	uint64_t address, length;
};

/*
 * A memory window: a part of a region, with rights of its own, for the peer of one queue
 * pair (type 2B) or of all queue pairs of its PD (type 1). Members after `ibv` are under
 * the engine's lock; callers may change ibv.rkey.
 */
struct soft_mw {
	struct ibv_mw ibv;
	uint32_t rkey;
	struct soft_mr *mr;	  /* NULL: not bound */
	struct soft_reach *reach; /* NULL: of type 1, not bound, or it is gone */
	uint64_t address, length;
	int access;
	struct pier_list link; /* in reach->windows */
};

struct ibv_mw *pier_soft_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int pier_soft_dealloc_mw(struct ibv_mw *mw);

/*
 * The region that a key of the queue pair's peer reaches: its own key or that of a
 * window. Without remote rights in `access` only the region's own key counts.
 */
struct soft_mr *pier_soft_find_range(const struct soft_reach *reach, uint32_t key,
				     uint64_t address, uint64_t length, int access);

/* False: the rules for binding do not allow it. */
bool pier_soft_bind_window(struct soft_reach *reach, const struct soft_bind *bind);

/* False: not a window of type 2 that is bound to this queue pair. */
bool pier_soft_invalidate(struct soft_reach *reach, uint32_t key);

/* The queue pair goes away: its windows keep their regions, but nobody reaches them. */
void pier_soft_detach_windows(struct soft_reach *reach);

#endif
