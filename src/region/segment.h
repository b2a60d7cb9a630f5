/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_SEGMENT_H
#define PIER_REGION_SEGMENT_H

#include "buffer/buffer.h"
#include "check.h"
#include "core/page.h"
#include "mr.h"

/* All or some of a range, which is registered under one key. */
struct pier_segment {
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

/* A whole range of a region. The path that a buffer will take is not known yet. */
static inline struct pier_segment pier_segment_of(const struct pier_mr *region,
						  const struct pier_resolved_range *range)
{
	return (struct pier_segment){
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
static inline bool pier_segment_splits(const struct pier_segment *segment)
{
	const struct pier_buffer *buffer = segment->range.buffer;

	return segment->region->split != PIER_SPLIT_NEVER && buffer &&
	       (buffer->backend->segment || buffer->backend->parts);
}

/* The properties of the PD's device that the checks need. */
static inline struct pier_check_limits pier_limits_of(const struct pier_pd *pd)
{
	const struct pier_device *device = pd->device;

	return (struct pier_check_limits){
		.page = pier_host_page(),
		.lacking_access = device->lacking_access,
		.dmabuf = device->dmabuf,
		.no_dmabuf = device->no_dmabuf,
		.takes_memfd = device->provider->takes_memfd,
		.device = device->name,
	};
}

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
