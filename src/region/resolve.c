/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "buffer/buffer.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/object.h"
#include "dereg.h"
#include "resolve.h"

static int hold_buffer(struct pier_resolved_range *resolved)
{
	struct pier_buffer *buffer = resolved->range.buffer;
	int error;

	if (!buffer)
		return pier_fail(EINVAL, "a range of a buffer: buffer is NULL");
	error = pier_check_buffer_range(buffer, resolved->range.offset,
					resolved->range.length, "registering");
	if (error)
		return error;
	resolved->address = buffer->address + resolved->range.offset;
	pier_buffer_hold(buffer);
	resolved->held = true;
	return 0;
}

/* The backends are asked whose pointer it is: from here on it is a buffer. */
static int wrap_pointer(struct pier_resolved_range *resolved)
{
	struct pier_mr_range *range = &resolved->range;
	int error = pier_buffer_wrap(range->addr, range->length, &range->buffer);

	if (error)
		return error;
	resolved->wrapped = true;
	range->source = PIER_MR_BUFFER;
	range->offset = 0;
	resolved->address = range->buffer->address;
	return 0;
}

static int resolve_range(struct pier_resolved_range *resolved)
{
	struct pier_mr_range *range = &resolved->range;

	if (range->length == 0)
		return pier_fail(EINVAL, "length 0: a region has at least one byte");
	if (range->length > SIZE_MAX)
		return pier_fail(EINVAL, "length %" PRIu64 " leaves the address space",
				 range->length);
	switch (range->source) {
	case PIER_MR_HOST:
		resolved->address = (uintptr_t)range->addr;
		return 0;
	case PIER_MR_BUFFER:
		return hold_buffer(resolved);
	case PIER_MR_DMABUF:
		resolved->address = range->offset;
		return 0;
	case PIER_MR_POINTER:
		return wrap_pointer(resolved);
	default:
		return pier_fail(EINVAL, "source %d: not one of enum pier_mr_source",
				 (int)range->source);
	}
}

/* On an error range_count says how many ranges there are to release. */
static int resolve_ranges(struct pier_mr *region, const struct pier_mr_attr *attr)
{
	while (region->range_count < attr->range_count) {
		uint32_t index = region->range_count++;
		struct pier_resolved_range *resolved = &region->ranges[index];
		int error;

		*resolved = (struct pier_resolved_range){ .range = attr->ranges[index] };
		error = resolve_range(resolved);
		if (error)
			return error;
		if (!pier_add_u64(region->length, resolved->range.length,
				  &region->length))
			return pier_fail(EINVAL, "the ranges' lengths overflow 64 bits");
	}
	return 0;
}

int pier_resolve_region(struct pier_pd *pd, const struct pier_mr_attr *attr,
			struct pier_mr *base, struct pier_mr **ret_region)
{
	struct pier_mr *region;
	size_t size = sizeof(*region) + attr->range_count * sizeof(region->ranges[0]);
	int error = pier_check_process(&pd->object);

	if (error)
		return error;
	/* Not calloc(), which in glibc bypasses the thread's cache. */
	region = malloc(size);
	if (!region)
		return pier_fail(ENOMEM, "registering memory: out of memory");
	*region = (struct pier_mr){
		.pd = pd,
		.base = base,
		.access = attr->access,
		.policy = attr->policy,
		.mapping = attr->mapping,
		.ordering = attr->ordering,
		.split = attr->split,
		.context = attr->context,
		.requested_key = attr->requested_key,
	};
	error = resolve_ranges(region, attr);
	if (error) {
		pier_free_region(region);
		return error;
	}
	*ret_region = region;
	return 0;
}
