/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_CACHE_INDEX_H
#define PIER_REGION_CACHE_INDEX_H

#include "cache.h"

/* The index of a cache. All calls need the cache's lock. */

/*
 * Find a kept region that serves a request, or NULL.
 *
 * backend  the one whose addresses these are; NULL: the address is a pointer
 */
struct pier_cache_entry *pier_cache_find(struct pier_mr_cache *cache, uint64_t start,
					 uint64_t end, int access,
					 const struct pier_backend *backend);

/*
 * Make room for a region and count it. Returns false, and does nothing, if dropping all
 * idle regions would not make enough room.
 */
bool pier_cache_reserve(struct pier_mr_cache *cache, uint64_t length);
/* Undo pier_cache_reserve() for a region that is not kept after all. */
void pier_cache_unreserve(struct pier_mr_cache *cache, uint64_t length);

/*
 * Keep an entry that is in use and that room was made for. Drops the kept entries that
 * it encloses. Returns false, and does not keep it, if there are too many sets.
 */
bool pier_cache_keep(struct pier_cache_entry *entry, const struct pier_backend *backend,
		     int access);

/* Count one more user of an entry, or one less. */
void pier_cache_use(struct pier_cache_entry *entry);
void pier_cache_unuse(struct pier_cache_entry *entry);

/* Stop keeping an entry: it is dead if it has no users, otherwise loose. */
void pier_cache_drop(struct pier_cache_entry *entry);

/* The same for all entries that overlap, including those being registered. */
void pier_cache_drop_range(struct pier_mr_cache *cache, uint64_t start, uint64_t end);

/* The same for all idle entries; those that were stuck are tried again. */
void pier_cache_drop_idle(struct pier_mr_cache *cache);

#endif
