/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_CACHE_INDEX_H
#define PIER_REGION_CACHE_INDEX_H

#include <pier/backend.h>

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

/* All caches of the process. */

/* Before the first cache: ask to be told of unmapped memory, freed buffers and forks. */
void pier_caches_init(void);

void pier_caches_add(struct pier_mr_cache *cache);
/* Also waits for other threads that work in it. -ETIMEDOUT: it is still in the list. */
int pier_caches_remove(struct pier_mr_cache *cache);

/*
 * The memory of an entry, by the number that its backend has for each segment. Segments
 * are mapped and unmapped one by one (PyTorch's expandable segments), so an entry that
 * spans several is stale as soon as one of them is. The caller holds no lock.
 */

/*
 * Read the numbers of the segments in the entry's range. Returns false, and the entry has
 * none, if the backend does not know one of them.
 */
bool pier_cache_identify(struct pier_cache_entry *entry,
			 const struct pier_backend *backend,
			 const struct pier_memory *memory);

/* Whether all segments still have their numbers; true for an entry without any. */
bool pier_cache_is_current(const struct pier_cache_entry *entry);

/*
 * Whether `kept`, whose range encloses that of `entry`, was registered with the memory
 * that `entry` has. May be called with the lock.
 */
bool pier_cache_has_memory_of(const struct pier_cache_entry *kept,
			      const struct pier_cache_entry *entry);

#endif
