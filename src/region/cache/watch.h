/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_CACHE_WATCH_H
#define PIER_REGION_CACHE_WATCH_H

#include <stdbool.h>

#include "tree.h"

/*
 * The watch over host memory, one for all caches of the process: userfaultfd(2)
 * reports memory that is unmapped, moved or emptied, and a thread passes that on to
 * the handler.
 */

/* What the caches do when memory has gone. */
struct pier_watch_handler {
	/*
	 * [start, end) has gone. Must not allocate, free or log. Returns whether there is
	 * something for reap() to do.
	 */
	bool (*unmapped)(uint64_t start, uint64_t end);
	/* On another thread, after unmapped() returned true. */
	void (*reap)(void);
	/* In a child of fork(2): the caches are the parent's. */
	void (*forget)(void);
};

/* Watched pages; a member of the object that needs the watch. */
struct pier_watched {
	struct pier_tree_node node;
	bool armed;
};

/*
 * Set the handler, which is static, and watch for forks. Before the first cache is
 * created; further calls do nothing.
 *
 * A child of fork(2) starts without caches and without their locks, which threads of
 * the parent may have held.
 */
void pier_watch_init(const struct pier_watch_handler *handler);

/*
 * Start the watch, or count one more user. pier_watch_stop() undoes that.
 *
 * Errors: -EOPNOTSUPP the kernel lacks a feature that it takes; others of
 * userfaultfd(2), -EPERM in some containers; -ENOMEM.
 */
int pier_watch_start(void);
void pier_watch_stop(void);

/*
 * Watch the pages of [start, end) until the program unmaps them. Call it before the
 * pages are registered.
 *
 * Returns 0 or -errno, without a sentence: -EINVAL, -EBUSY memory that cannot be
 * watched; -ENOMEM too many mappings.
 */
int pier_watch_arm(struct pier_watched *watched, uint64_t start, uint64_t end);
void pier_watch_disarm(struct pier_watched *watched);

/*
 * Wait a short time until everything that was unmapped before this call has been passed
 * to the handler. Returns false if that takes longer. Only between start and stop.
 */
bool pier_watch_settled(void);

/* For tests: stop the listener as if it got no CPU time, and undo that. */
void pier_watch_pause(void);
void pier_watch_resume(void);

#endif
