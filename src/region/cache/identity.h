/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_CACHE_IDENTITY_H
#define PIER_REGION_CACHE_IDENTITY_H

#include <pier/backend.h>

#include "cache.h"

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
void pier_cache_forget_identity(struct pier_cache_entry *entry);

/* Whether all segments still have their numbers; true for an entry without any. */
bool pier_cache_is_current(const struct pier_cache_entry *entry);

/*
 * Whether `kept`, whose range encloses that of `entry`, was registered with the memory
 * that `entry` has. May be called with the lock.
 */
bool pier_cache_has_memory_of(const struct pier_cache_entry *kept,
			      const struct pier_cache_entry *entry);

#endif
