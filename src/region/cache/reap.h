/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_CACHE_REAP_H
#define PIER_REGION_CACHE_REAP_H

#include "cache.h"

/* Deregistering dead entries. The caller holds no lock. */

/* Deregister all dead entries. Returns the first error; entries that fail are stuck. */
int pier_cache_reap(struct pier_mr_cache *cache);
/*
 * The same, and wait for other threads that deregister entries which overlap the range.
 *
 * Errors: those of pier_dereg_mr(); -ETIMEDOUT.
 */
int pier_cache_reap_range(struct pier_mr_cache *cache, uint64_t start, uint64_t end);
/* Free an entry that has no region and is in no list. */
void pier_cache_free_entry(struct pier_cache_entry *entry);

#endif
