/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_WINDOW_H
#define PIER_REGION_WINDOW_H

#include "mr.h"
#include "core/list.h"

/*
 * The memory window, of type 2, of a region that is one. The windows of a queue pair are
 * in a list of its channel, which deallocates them before the queue pair. `mw` and `link`
 * are read and written under pd->windows_lock.
 */
struct pier_window {
	struct pier_pd *pd;
	struct ibv_mw *mw; /* NULL: it was deallocated, and the key with it */
	uint32_t rkey;
	struct pier_list link;
};

/* The verbs region that a window is to be bound to. */
struct ibv_mr *pier_window_under(const struct pier_mr *window);

/* Note that the window is bound, and its key. Adds it to its queue pair's list. */
void pier_window_bound(struct pier_mr *window, uint32_t rkey, struct pier_list *windows);

/*
 * Deallocate the verbs window of a region that is one, bound or not, if it still has
 * it. 0 or a positive errno.
 */
int pier_unbind_window(struct pier_mr *region);

/* The same for all windows of a list. Their regions stay, without a key. */
int pier_unbind_windows(struct pier_pd *pd, struct pier_list *windows);

#endif
