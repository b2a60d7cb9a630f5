/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_MR_H
#define PIER_REGION_MR_H

#include <stdatomic.h>

#include <stddef.h>

#define PIER_INLINE_NAMES_ONLY
#include <pier/inline.h>
#include <pier/mr.h>

#include "device/device.h"

struct pier_cache_entry;
struct pier_stage;

/* One verbs region beneath a region, and the bytes of the region that it has. */
struct pier_mr_part {
	struct ibv_mr *mr;
	uint64_t start; /* of its first byte in the region */
	uint64_t length;
	uint64_t iova; /* where its own addresses begin */
	enum pier_path path;
	enum pier_mapping mapping; /* of the dma-buf, where its backend has a choice */
	struct pier_stage *stage;  /* of PIER_PATH_STAGED */
	uint64_t stage_offset;	   /* of its first byte in the stage */
	char *why;		   /* no better path; NULL: it is the best */
};

/* A range that a region was made of, after its owner was found. */
struct pier_mr_memory {
	struct pier_mr_range range; /* never PIER_MR_POINTER; an fd is not kept */
	uint64_t address;	    /* of a dma-buf: the offset */
	bool wrapped;		    /* range.buffer was made here, of a pointer */
	bool held;		    /* range.buffer is kept busy by the region */
	bool owns_fd;		    /* range.fd is closed when the driver had it */
};

/* Let a range begin so many bytes later. */
static inline void pier_advance_range(struct pier_mr_range *range, uint64_t offset)
{
	if (range->source == PIER_MR_HOST)
		range->addr = (char *)range->addr + offset;
	else
		range->offset += offset;
}

struct pier_mr {
	struct pier_object object;
	/* Up to `uses` a struct pier_hot_mr. */
	uint64_t iova;
	uint64_t length;
	uint32_t lkey; /* of mr, once it is registered */
	uint32_t uses;
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
	uint32_t memory_count;
	struct pier_mr_memory memory[];
};

#define PIER_HOT_MR_AT(member)                                                         \
	_Static_assert(offsetof(struct pier_mr, member) ==                             \
			       PIER_HOT_OFFSET + offsetof(struct pier_hot_mr, member), \
		       "as callers have it")
PIER_HOT_MR_AT(iova);
PIER_HOT_MR_AT(length);
PIER_HOT_MR_AT(lkey);
PIER_HOT_MR_AT(uses);

/* The part that has the byte at `offset`, which lies in the region. */
const struct pier_mr_part *pier_mr_find_part(const struct pier_mr *mr, uint64_t offset);

/* Let go what a part has beside its verbs region; twice is harmless. */
void pier_drop_part(struct pier_mr_part *part);

/* Part `index`, less than pier_mr_parts(); of a window: of what it is bound to. */
const struct pier_mr_part *pier_mr_part_at(const struct pier_mr *mr, uint32_t index);

/* The driver had the fds that the region was made of, or will not have them. */
void pier_forget_fds(struct pier_mr *region);

/* Free a region of which nothing is registered, and let go what it keeps. */
void pier_free_region(struct pier_mr *region);

/* Deregister the verbs regions beneath, the last first. 0 or a positive errno. */
int pier_dereg_parts(struct pier_mr *region);

/* A region has what describes it: its parents keep it from now on. */
void pier_adopt_region(struct pier_mr *region);

/* Errors: -EINVAL length 0; -ERANGE [offset, offset + length) leaves the region. */
int pier_check_sub(const struct pier_mr *mr, uint64_t offset, uint64_t length);

/*
 * Read the attributes of a caller and look through them.
 *
 * Errors: -EINVAL NULL, or what is in them is not possible.
 */
int pier_read_mr_attr(const struct pier_mr_attr *attr, struct pier_mr_attr *ret_attr);

/*
 * A region in two steps: first all that needs no driver. Finds whose memory it is
 * and keeps that, settles the addresses and checks them. The ranges of `attr` are
 * copied, and fds in them stay the caller's. pier_free_region() takes it back.
 *
 * base  of which it is a sub-region, or NULL
 */
int pier_new_region(struct pier_pd *pd, const struct pier_mr_attr *attr,
		    struct pier_mr *base, struct pier_mr **ret_region);

/*
 * Then the driver: register a new region. From then on it counts, and is for
 * pier_dereg_mr(); on an error it is freed.
 *
 * key  the one that is asked for; 0: any
 */
int pier_register_region(struct pier_mr *region, uint32_t key);

/* Both at once, of attributes that were read. */
int pier_register(struct pier_pd *pd, const struct pier_mr_attr *attr,
		  struct pier_mr *base, struct pier_mr **ret_mr);

#endif
