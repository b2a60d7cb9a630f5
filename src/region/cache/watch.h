/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_CACHE_WATCH_H
#define PIER_REGION_CACHE_WATCH_H

#include <stdbool.h>

#include "tree.h"

/*
 * The watch over host memory, one for all caches of the process: userfaultfd(2)
 * tells of memory that is unmapped, moved or emptied, and a thread passes that on
 * to pier_caches_unmapped().
 */

/* Pages that are watched, and for whom; in the object that wants it. */
struct pier_watched {
	struct pier_tree_node node;
	bool armed;
};

/*
 * See to it that a child of fork(2) knows no cache: the first, before there is one.
 * Its parent's are not for it, and whoever held their locks is not there.
 */
void pier_watch_caches_fork(void);

/*
 * Start it, or count one more user. pier_watch_stop() undoes that.
 *
 * Errors: -EOPNOTSUPP the kernel does not have what it takes; others of
 * userfaultfd(2), -EPERM in some containers; -ENOMEM.
 */
int pier_watch_start(void);
void pier_watch_stop(void);

/*
 * Watch the pages of [start, end), as long as the program does not unmap them.
 * Must be called before whatever relies on the pages is done with them.
 *
 * Returns 0 or -errno, without a sentence: -EINVAL, -EBUSY memory that cannot be
 * watched; -ENOMEM too many mappings.
 */
int pier_watch_arm(struct pier_watched *watched, uint64_t start, uint64_t end);
void pier_watch_disarm(struct pier_watched *watched);

/*
 * Whether all that was unmapped before this call has been passed on. It waits for
 * that, but not for long. Only between start and stop.
 */
bool pier_watch_settled(void);

/* For tests: as if the thread that reads had no processor, and undo that. */
void pier_watch_pause(void);
void pier_watch_resume(void);

#endif
