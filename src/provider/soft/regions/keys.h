/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_KEYS_H
#define PIER_SOFT_KEYS_H

#include <stdint.h>

#include "provider/soft/limits.h"

/* The keys of regions and windows. With the engine locked. */

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
int pier_soft_take_window_key(struct soft_mr_table *table, struct soft_mw *mw);
void pier_soft_release_window_key(struct soft_mr_table *table, const struct soft_mw *mw);
void pier_soft_free_keys(struct soft_mr_table *table);

#endif
