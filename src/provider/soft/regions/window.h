/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_WINDOW_H
#define PIER_SOFT_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "core/list.h"

/*
 * Memory windows: a part of a region, with rights of its own, for the peer of one queue
 * pair (type 2B) or of all queue pairs of its PD (type 1).
 */

struct soft_mr;
struct soft_qp;

/* What binds a window, by keys, since the objects may be gone when it is executed. */
struct soft_bind {
	uint32_t window, region, key;
	int access;
	uint64_t address, length;
};

/* Members after `ibv` are under the engine's lock; callers may change ibv.rkey. */
struct soft_mw {
	struct ibv_mw ibv;
	uint32_t rkey;
	struct soft_mr *mr; /* NULL: not bound */
	struct soft_qp *qp; /* NULL: not bound, of type 1, or its queue pair is gone */
	uint64_t address, length;
	int access;
	struct pier_list link; /* in qp->windows */
};

struct ibv_mw *pier_soft_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int pier_soft_dealloc_mw(struct ibv_mw *mw);

/* All below: with the engine locked. */

/*
 * The region that a key of the queue pair's peer reaches: its own key or that of a
 * window. Without remote rights in `access` only the region's own key counts.
 */
struct soft_mr *pier_soft_find_range(struct soft_qp *qp, uint32_t key, uint64_t address,
				     uint64_t length, int access);
/* False: the rules for binding do not allow it. */
bool pier_soft_bind_window(struct soft_qp *qp, const struct soft_bind *bind);
/* False: not a window of type 2 that is bound to this queue pair. */
bool pier_soft_invalidate(struct soft_qp *qp, uint32_t key);
/* The queue pair goes away: its windows keep their regions, but nobody reaches them. */
void pier_soft_detach_windows(struct soft_qp *qp);

#endif
