/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_BUDGET_H
#define PIER_TOOLS_CP_BUDGET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * The memory that a side may still use for a tree: for its list, the names in a directory
 * while it is read, and sentences about files that are left out. Any thread may call
 * these.
 */
struct budget {
	_Atomic uint64_t left; /* bytes */
};

/* Of each allocation, besides its bytes: what malloc(3) and a pointer to it take. */
enum {
	BUDGET_ALLOCATION = 40
};

/* Returns false, and charges nothing, if less than that is left. */
static inline bool charge_budget(struct budget *budget, uint64_t bytes)
{
	uint64_t left = atomic_load(&budget->left);

	do {
		if (left < bytes)
			return false;
	} while (!atomic_compare_exchange_weak(&budget->left, &left, left - bytes));
	return true;
}

static inline void release_budget(struct budget *budget, uint64_t bytes)
{
	atomic_fetch_add(&budget->left, bytes);
}

#endif
