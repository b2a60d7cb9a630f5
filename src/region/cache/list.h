/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_CACHE_LIST_H
#define PIER_REGION_CACHE_LIST_H

#include "cache.h"

/* All caches of the process. */

/* Before the first cache: ask to be told of unmapped memory, freed buffers and forks. */
void pier_caches_init(void);

void pier_caches_add(struct pier_mr_cache *cache);
/* Also waits for other threads that work in it. -ETIMEDOUT: it is still in the list. */
int pier_caches_remove(struct pier_mr_cache *cache);

#endif
