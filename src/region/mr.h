/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_MR_H
#define PIER_REGION_MR_H

#include <stdatomic.h>
#include <stddef.h>

#include <pier/hot.h>
#include <pier/mr.h>
#include <pier/remote.h>

#include "core/list.h"
#include "device/pd.h"

struct pier_cache_entry;
struct pier_bounce;

/* A part of a region: one verbs region, and the bytes of the region that it covers. */
struct pier_mr_part {
	struct ibv_mr *mr;
	uint64_t start; /* offset of its first byte in the region */
	uint64_t length;
	uint64_t iova; /* its first address under its own key */
	enum pier_path path;
	enum pier_mapping mapping;  /* of the dma-buf, if its backend has a choice */
	struct pier_bounce *bounce; /* with PIER_PATH_BOUNCE, else NULL */
	uint64_t bounce_offset;	    /* offset of its first byte in the bounce buffer */
	char *reason;		    /* why it has no better path; NULL: it has the best */
	struct pier_far_key far;    /* added if the CPU does not find it at `iova` */
};

/* A range of a region after plan.c has found its owner. */
struct pier_resolved_range {
	struct pier_mr_range range; /* never PIER_MR_POINTER; its fd may be closed */
	uint64_t address;	    /* for a dma-buf, the offset in it */
	uint64_t start;		    /* offset of its first byte in the region */
	uint64_t iova;		    /* its first address under a key of its own */
	bool wrapped; /* range.buffer was made from a pointer, and is freed here */
	bool held;    /* range.buffer has the region as a user */
	bool owns_fd; /* range.fd is closed once the driver has it: async.c */
};

/* How the keys of a region come about: see plan.c. */
enum pier_key_plan {
	PIER_KEYS_OF_PARTS,   /* each part is registered under a key of its own */
	PIER_KEY_OF_DEVICE,   /* the ranges are registered under the requested key */
	PIER_KEY_OF_DMABUF,   /* one dma-buf is made of all ranges */
	PIER_KEY_OVER_PARTS,  /* the device makes one more key over the keys of parts */
	PIER_KEY_UNAVAILABLE, /* one key is asked for, and nothing joins the ranges */
};

/*
 * The length of a remote vector in bytes. Errors: -ERANGE the sum, or the end of a part,
 * exceeds 64 bits.
 */
int pier_remote_vec_length(const struct pier_remote *parts, uint32_t count,
			   uint64_t *ret_length);

/* Move the beginning of a range forward. */
static inline void pier_advance_range(struct pier_mr_range *range, uint64_t offset)
{
	if (range->source == PIER_MR_HOST)
		range->addr = (char *)range->addr + offset;
	else
		range->offset += offset;
}

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

struct pier_mr {
	struct pier_object object;
	struct pier_hot_mr; /* iova, length, lkey and uses: -fms-extensions */
	/*
	 * The first part's, or the only one's. mr->addr is not read: for a dma-buf
	 * libibverbs puts the offset there (ibv_reg_dmabuf_mr in its verbs.c).
	 */
	struct ibv_mr *mr;
	uint32_t access;
	enum pier_path path;
	/* NULL: `mr` covers the whole region, at the region's iova. */
	struct pier_mr_part *parts;
	uint32_t part_count;
	/*
	 * With an indirect key over several parts: these. `first` is then the part that
	 * the key makes of them, and is deregistered before them. Otherwise NULL.
	 */
	struct pier_mr_part *beneath;
	uint32_t beneath_count;

	/* Not NULL: a memory window; `mr`, if there is one, is beneath it. */
	struct pier_window *window;
	struct pier_pd *pd;
	void *context;
	enum pier_policy policy;
	enum pier_mapping mapping;   /* the requested one */
	enum pier_ordering ordering; /* the requested one */
	enum pier_split split;
	enum pier_tph tph; /* the requested one */
	int tph_cpu;
	/* With `tph`, once registered; a sub-region has that of its base. */
	struct ibv_dmah *dmah;
	struct pier_mr *base; /* the region that this is a sub-region of, or NULL */
	atomic_uint children; /* sub-regions */
	atomic_uint counters; /* counters that are bound to it */
	struct pier_cache_entry *cached; /* its entry in a registration cache, or NULL */
	enum pier_key_plan key_plan;
	bool joins_parts; /* PIER_KEY_OVER_PARTS is possible */
	uint32_t requested_key;
	uint32_t range_count;
	/* The storage of the first part, while it is the only one; not set before. */
	struct pier_mr_part first;
	struct pier_resolved_range ranges[];
};

_Static_assert(offsetof(struct pier_mr, iova) == PIER_HOT_OFFSET,
	       "where <pier/inline.h> reads it");

/* The part of the byte at `offset`, which lies in the region. */
const struct pier_mr_part *pier_mr_find_part(const struct pier_mr *mr, uint64_t offset);

/* Part `index`, less than pier_mr_parts(), of the region or the one beneath a window. */
const struct pier_mr_part *pier_mr_part_at(const struct pier_mr *mr, uint32_t index);

/* The region whose memory it is: that of a window is the region beneath. */
const struct pier_mr *pier_mr_beneath(const struct pier_mr *mr);

/* The keys of the first part. A memory window has no lkey: 0. */
uint32_t pier_mr_lkey(const struct pier_mr *mr);
uint32_t pier_mr_rkey(const struct pier_mr *mr);

/*
 * Write "the region of 4096 bytes at 0x1000 (dma-buf)" for a key of the PD; "" if no
 * region has it as its first key. Any thread.
 */
void pier_name_region(const struct pier_pd *pd, uint32_t lkey, char *ret_text,
		      size_t size);

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
