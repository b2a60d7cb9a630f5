/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_MR_H
#define PIER_REGION_MR_H

#include <stdatomic.h>

#include <stddef.h>

#include <pier/hot.h>
#include <pier/mr.h>

#include "device/device.h"

struct pier_cache_entry;
struct pier_bounce;

/* One verbs region beneath a region, and the bytes of the region that it has. */
struct pier_mr_part {
	struct ibv_mr *mr;
	uint64_t start; /* of its first byte in the region */
	uint64_t length;
	uint64_t iova; /* where its own addresses begin */
	enum pier_path path;
	enum pier_mapping mapping;  /* of the dma-buf, where its backend has a choice */
	struct pier_bounce *bounce; /* of PIER_PATH_BOUNCE */
	uint64_t bounce_offset;	    /* of its first byte in the bounce buffer */
	char *reason;		    /* for no better path; NULL: it is the best */
};

/* A range of a region after resolve.c has found its owner. */
struct pier_resolved_range {
	struct pier_mr_range range; /* never PIER_MR_POINTER; an fd is not kept */
	uint64_t address;	    /* of a dma-buf: the offset */
	bool wrapped;		    /* range.buffer was made here, of a pointer */
	bool held;		    /* range.buffer is kept busy by the region */
	bool owns_fd;		    /* range.fd is closed once the driver has it */
};

/* How the keys of a region come about: see plan.c. */
enum pier_key_plan {
	PIER_KEYS_OF_PARTS,   /* each part is registered under a key of its own */
	PIER_KEY_OF_DEVICE,   /* the device joins the ranges under one key */
	PIER_KEY_OF_DMABUF,   /* one dma-buf is made of all ranges */
	PIER_KEY_UNAVAILABLE, /* one key is asked for, and nothing joins the ranges */
};

/* Move the beginning of a range forward. */
static inline void pier_advance_range(struct pier_mr_range *range, uint64_t offset)
{
	if (range->source == PIER_MR_HOST)
		range->addr = (char *)range->addr + offset;
	else
		range->offset += offset;
}

struct pier_mr {
	struct pier_object object;
	struct pier_hot_mr; /* iova, length, lkey and uses: -fms-extensions */
	/*
	 * The first part's, or the only one's. mr->addr is not read: for a dma-buf
	 * libibverbs puts the offset there (ibv_reg_dmabuf_mr in its verbs.c).
	 */
	struct ibv_mr *mr;
	int access;
	enum pier_path path;
	/* NULL: mr has all of the region, at the region's iova. */
	struct pier_mr_part *parts;
	uint32_t part_count;
	struct pier_mr_part first; /* where parts points as long as there is one */

	/* Not NULL: a memory window, and mr, if there is one, is beneath it. */
	struct pier_window *window;
	struct pier_pd *pd;
	void *context;
	enum pier_policy policy;
	enum pier_mapping mapping; /* that is asked for */
	enum pier_split split;
	struct pier_mr *base;		 /* of a sub-region */
	atomic_uint children;		 /* sub-regions */
	atomic_uint counters;		 /* bindings of counters to it */
	struct pier_cache_entry *cached; /* of a registration cache, or NULL */
	enum pier_key_plan key_plan;
	uint32_t requested_key;
	uint32_t range_count;
	struct pier_resolved_range ranges[];
};

_Static_assert(offsetof(struct pier_mr, iova) == PIER_HOT_OFFSET,
	       "where <pier/inline.h> reads it");

/* The part that has the byte at `offset`, which lies in the region. */
const struct pier_mr_part *pier_mr_find_part(const struct pier_mr *mr, uint64_t offset);

/* Part `index`, less than pier_mr_parts(); of a window: of what it is bound to. */
const struct pier_mr_part *pier_mr_part_at(const struct pier_mr *mr, uint32_t index);

/* The region whose memory it is: that of a window is the region beneath. */
const struct pier_mr *pier_mr_beneath(const struct pier_mr *mr);

#endif
