/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_WINDOW_H
#define PIER_REGION_WINDOW_H

#include "mr.h"
#include "core/list.h"

/*
 * What a region has that is a memory window of type 2. The windows of a queue pair
 * are in a list of its channel, which ends them before the queue pair; `mw` and
 * `link` are looked at under pd->windows_lock.
 */
struct pier_window {
	struct pier_pd *pd;
	struct ibv_mw *mw; /* NULL: gone, and with it the key */
	uint32_t rkey;
	struct pier_list link;
};

/* The verbs region that a window is to be bound to. */
struct ibv_mr *pier_window_under(const struct pier_mr *window);

/* The window is bound, under that key: its queue pair's list has it. */
void pier_window_bound(struct pier_mr *window, uint32_t rkey, struct pier_list *windows);

/*
 * Deallocate the verbs window, if the region is one and still has it. Whether it is
 * bound does not matter. 0 or a positive errno.
 */
int pier_unbind_window(struct pier_mr *region);

/* The same for all of a list: their regions stay, without a key. */
int pier_unbind_windows(struct pier_pd *pd, struct pier_list *windows);

#endif
