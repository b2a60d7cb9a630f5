/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_SEGMENT_H
#define PIER_REGION_SEGMENT_H

#include "buffer/buffer.h"
#include "check.h"
#include "mr.h"

/* All or some of a range, which is registered under one key. */
struct pier_segment {
	const struct pier_mr *region;
	struct pier_mr_range range; /* never PIER_MR_POINTER */
	uint64_t start;		    /* of its first byte in the region */
	uint64_t iova;		    /* agrees with its address modulo the page */
	enum pier_policy policy;
	enum pier_mapping mapping;
	bool may_split; /* -EXDEV goes to the caller, which registers shorter segments */
	bool checked;	/* by pier_plan_region(), for the path that it will take */
};

/* The properties of the PD's device that the checks need. */
struct pier_check_limits pier_limits_of(const struct pier_pd *pd);

/* What an export of the region's memory is for. */
static inline struct pier_export_use pier_export_use_of(const struct pier_mr *region,
							enum pier_mapping mapping)
{
	bool writes = region->access & (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
					IBV_ACCESS_REMOTE_ATOMIC);

	return (struct pier_export_use){
		.mapping = mapping,
		.access = PIER_BACKEND_READ | (writes ? PIER_BACKEND_WRITE : 0),
		.importer = region->pd->device->name,
	};
}

/* Register a dma-buf, or host memory, at the segment's iova. */
int pier_register_fd(const struct pier_segment *segment, int fd, uint64_t offset,
		     struct pier_mr_part *ret_part);
/* addr: the CPU's, or with PIER_PATH_PEERMEM the device's */
int pier_register_pages(const struct pier_segment *segment, void *addr,
			enum pier_path path, struct pier_mr_part *ret_part);

/*
 * The sentence for a registration that the provider refused with `error`;
 * path: how it was tried. Returns -error.
 */
int pier_fail_registration(int error, const struct pier_pd *pd, uint64_t length,
			   enum pier_path path);

#endif
