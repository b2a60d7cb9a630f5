/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_SEGMENT_H
#define PIER_REGION_SEGMENT_H

#include "buffer/buffer.h"
#include "mr.h"

/* All or some of a range, which is registered under one key. */
struct pier_part_request {
	const struct pier_mr *region;
	struct pier_mr_range range; /* never PIER_MR_POINTER */
	uint64_t start;		    /* of its first byte in the region */
	uint64_t iova;		    /* agrees with its address modulo the page */
	enum pier_policy policy;
	enum pier_mapping mapping;
	bool data_direct; /* through that engine of the NIC */
	bool checked;	  /* by pier_plan_region(), for the path that it will take */
	bool canary;	  /* it is the memory of canary.c */
};

/* Registers a segment on one path. Writes all of *ret_part. */
typedef int pier_path_function(const struct pier_part_request *segment,
			       struct pier_mr_part *ret_part);

/* A whole range of a region. The path that a buffer will take is not known yet. */
static inline struct pier_part_request pier_part_request_of(
	const struct pier_mr *region, const struct pier_resolved_range *range)
{
	return (struct pier_part_request){
		.region = region,
		.range = range->range,
		.start = range->start,
		.iova = range->iova,
		.policy = region->policy,
		.mapping = region->mapping,
		.checked = range->range.source != PIER_MR_BUFFER,
	};
}

/* Whether -EXDEV goes to the caller, which then registers shorter segments. */
static inline bool pier_part_request_splits(const struct pier_part_request *segment)
{
	const struct pier_buffer *buffer = segment->range.buffer;
	const struct pier_mr *region = segment->region;

	return (region->split != PIER_SPLIT_NEVER ||
		region->key_plan == PIER_KEY_OVER_PARTS) &&
	       buffer && (buffer->backend->segment || buffer->backend->parts);
}

#endif
