/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "core/caller.h"
#include "core/checked.h"
#include "core/error.h"
#include "reg.h"
#include "sub.h"

/* Cut the bytes [offset, offset + length) out of the ranges of a region. */
static uint32_t slice_ranges(const struct pier_mr *mr, uint64_t offset, uint64_t length,
			     struct pier_mr_range *ret_ranges)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < mr->range_count && length > 0; i++) {
		struct pier_mr_range range = mr->ranges[i].range;
		uint64_t part;

		if (offset >= range.length) {
			offset -= range.length;
			continue;
		}
		part = range.length - offset < length ? range.length - offset : length;
		pier_advance_range(&range, offset);
		range.length = part;
		ret_ranges[count++] = range;
		offset = 0;
		length -= part;
	}
	return count;
}

int pier_check_sub(const struct pier_mr *mr, uint64_t offset, uint64_t length)
{
	if (length == 0)
		return pier_fail(EINVAL, "length 0: a region has at least one byte");
	if (!pier_range_fits(offset, length, mr->length))
		return pier_fail(ERANGE,
				 "%" PRIu64 " bytes at offset %" PRIu64
				 " leave the region of %" PRIu64,
				 length, offset, mr->length);
	return 0;
}

static int check_sources(const struct pier_mr_range *ranges, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		if (ranges[i].source == PIER_MR_DMABUF)
			return pier_fail(
				EOPNOTSUPP,
				"a sub-region in a dma-buf that was given as an "
				"fd, which the region has not kept: register the "
				"part from the fd");
	return 0;
}

int pier_mr_reg_sub(struct pier_mr *mr, uint64_t offset, uint64_t length, uint32_t access,
		    struct pier_mr **ret_mr)
{
	PIER_REFUSE_NULL(mr, ret_mr);
	PIER_ENTRY();
	struct pier_mr_attr attr = {
		.access = access,
		.addressing = PIER_ADDRESSING_IOVA,
		.iova = mr->iova + offset,
		.policy = mr->policy,
		.mapping = mr->mapping,
		.ordering = mr->ordering,
		.split = mr->split,
		.tph = mr->tph,
		.tph_cpu = mr->tph_cpu,
	};
	struct pier_mr_range *ranges;
	int error = pier_check_process(&mr->object);

	if (!error)
		error = pier_check_sub(mr, offset, length);
	if (error)
		return error;
	if (mr->window)
		return pier_fail(EINVAL,
				 "a sub-region of a memory window, which has no "
				 "memory of its own: take it from the region that "
				 "the window is bound to");
	ranges = calloc(mr->range_count, sizeof(*ranges));
	if (!ranges)
		return pier_fail(ENOMEM, "registering a sub-region: out of memory");
	attr.ranges = ranges;
	attr.range_count = slice_ranges(mr, offset, length, ranges);
	error = check_sources(ranges, attr.range_count);
	if (!error)
		error = pier_register(mr->pd, &attr, mr, ret_mr);
	free(ranges);
	return error;
}

/* A region without a verbs region: the window will be bound to that of the base. */
static int make_bare_region(struct pier_mr *mr, uint64_t offset, uint64_t length,
			    struct pier_mr **ret_region)
{
	struct pier_mr *region = calloc(1, sizeof(*region));

	if (!region)
		return pier_fail(ENOMEM, "a memory window: out of memory");
	region->pd = mr->pd;
	region->base = mr;
	region->iova = mr->iova + offset;
	region->length = length;
	region->path = mr->path;
	region->policy = mr->policy;
	region->split = mr->split;
	pier_track_region(region);
	*ret_region = region;
	return 0;
}

/*
 * If the device does not enforce the bounds of windows, the window gets a sub-region of
 * its own, whose bounds are enforced, with only the access that binding needs.
 */
static int make_region(struct pier_mr *mr, uint64_t offset, uint64_t length,
		       struct pier_mr **ret_region)
{
	if (!mr->pd->device->unbounded_windows)
		return make_bare_region(mr, offset, length, ret_region);
	return pier_mr_reg_sub(
		mr, offset, length,
		(mr->access & PIER_ACCESS_LOCAL_WRITE) | PIER_ACCESS_MW_BIND, ret_region);
}

static int add_window(struct pier_mr *region)
{
	struct pier_device *device = region->pd->device;
	struct pier_window *window = calloc(1, sizeof(*window));

	if (!window)
		return pier_fail(ENOMEM, "a memory window: out of memory");
	window->pd = region->pd;
	pier_list_init(&window->link);
	region->window = window;
	region->uses = 0;
	pier_clear_error();
	errno = 0;
	window->mw = device->provider->alloc_mw(region->pd->pd, IBV_MW_TYPE_2);
	if (!window->mw)
		return pier_fail_because(errno, "allocating a memory window on %s",
					 device->name);
	window->rkey = window->mw->rkey;
	return 0;
}

/* A region that may be split has several parts if the driver was short of memory. */
static int fail_parts(const struct pier_mr *region)
{
	return pier_fail(ENOMEM,
			 "a memory window: the region beneath it has %u parts, "
			 "and a window has room for one",
			 region->part_count);
}

int pier_make_window(struct pier_mr *mr, uint64_t offset, uint64_t length,
		     uint32_t access, struct pier_mr **ret_window)
{
	struct pier_mr *region;
	int error = make_region(mr, offset, length, &region);

	if (error)
		return error;
	region->access = access;
	error = region->parts ? fail_parts(region) : add_window(region);
	if (error) {
		/* This keeps the sentence of the failure. */
		pier_mr_dereg(region);
		return error;
	}
	*ret_window = region;
	return 0;
}
