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

int pier_reg_sub_mr(struct pier_mr *mr, uint64_t offset, uint64_t length, int access,
		    struct pier_mr **ret_mr)
{
	PIER_ENTRY();
	struct pier_mr_attr attr = {
		.access = access,
		.addressing = PIER_ADDRESSING_IOVA,
		.iova = mr->iova + offset,
		.policy = mr->policy,
		.mapping = mr->mapping,
		.ordering = mr->ordering,
		.split = mr->split,
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
