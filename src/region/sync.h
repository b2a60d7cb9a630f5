/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_SYNC_H
#define PIER_REGION_SYNC_H

#include <stdatomic.h>

#include <pier/sync.h>

#include "buffer/buffer.h"
#include "segment.h"

/*
 * A bounce buffer: host memory that a NIC uses in place of memory which it cannot reach.
 * It is as long as that memory, so requests are the same with it and without.
 * pier_mr_sync_for_nic() and pier_mr_sync_for_device() copy between the two.
 */
struct pier_bounce {
	atomic_uint users;	    /* parts that use it, also of sub-regions */
	struct pier_buffer *buffer; /* borrowed; the region holds it */
	uint64_t offset;	    /* in the buffer, of the first byte */
	uint64_t length;
	struct pier_buffer *shadow;
	uint64_t skew; /* offset of the first byte in the shadow */
	char *cpu;     /* the address of the first byte in the shadow */
	bool locked;   /* the backend has locked the pages of the shadow */
};

/* The bounce buffer of the segment's bytes: that of its region's base, or a new one. */
int pier_bounce_get(const struct pier_part_request *segment,
		    struct pier_bounce **ret_bounce);

/* Count one user less, and free it with the last; NULL is fine. */
void pier_bounce_put(struct pier_bounce *bounce);

/* The segment to register in place of the given one: its bytes in the bounce buffer. */
struct pier_part_request pier_bounce_segment(const struct pier_bounce *bounce,
					     const struct pier_part_request *segment);

/* Whether the base of a sub-region has a bounce buffer for the segment's bytes. */
bool pier_base_has_bounce(const struct pier_part_request *segment);

/*
 * How many of the segment's first `length` bytes lie in one bounce buffer of the region's
 * base, or in none.
 */
uint64_t pier_bounce_reach(const struct pier_part_request *segment, uint64_t length);

/* Whether a part of a region has a bounce buffer, so that its bytes must be copied. */
bool pier_has_bounce(const struct pier_mr *mr);

/* Whether NICs write directly to the memory of a buffer, which may need a flush then. */
bool pier_has_direct(const struct pier_mr *mr);

/*
 * The two halves of pier_mr_sync_for_device(): copy from the bounce buffers; and flush
 * device memory without a bounce buffer, or, with `all`, all device memory.
 */
int pier_copy_for_device(struct pier_mr *mr, uint64_t offset, uint64_t length);
int pier_flush_for_device(struct pier_mr *mr, uint64_t offset, uint64_t length, bool all);

/* Whether pier_visit_region() can: no range is a dma-buf without a buffer. */
bool pier_can_visit(const struct pier_mr *mr);

/*
 * Look at bytes of a region's memory, not of its bounce buffers, in their order. Errors:
 * those of the backend.
 */
int pier_visit_region(struct pier_mr *mr, uint64_t offset, uint64_t length,
		      const struct pier_visit *visit);

#endif
