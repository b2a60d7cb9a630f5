/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "mr.h"
#include "core/caller.h"
#include "core/page.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/extensible.h"

/* The calls that register: each says what it wants by attributes. */

static_assert(sizeof(struct pier_mr_attr) ==
		      offsetof(struct pier_mr_attr, reserved) + sizeof(uint32_t),
	      "no padding at the end, where a new field would not change the size");

static int check_choices(const struct pier_mr_attr *attr)
{
	if (attr->addressing < PIER_ADDRESSING_VIRTUAL ||
	    attr->addressing > PIER_ADDRESSING_IOVA)
		return pier_fail(EINVAL, "addressing %d: not one of enum pier_addressing",
				 (int)attr->addressing);
	if (attr->policy < PIER_POLICY_DIRECT || attr->policy > PIER_POLICY_STAGED)
		return pier_fail(EINVAL, "policy %d: not one of enum pier_policy",
				 (int)attr->policy);
	if (attr->split < PIER_SPLIT_SEAMS || attr->split > PIER_SPLIT_NEVER)
		return pier_fail(EINVAL, "split %d: not one of enum pier_split",
				 (int)attr->split);
	if (attr->mapping < PIER_MAPPING_AUTO || attr->mapping > PIER_MAPPING_PCIE)
		return pier_fail(EINVAL, "mapping %d: not one of enum pier_mapping",
				 (int)attr->mapping);
	if (attr->reserved)
		return pier_fail(EINVAL, "reserved is %u, not 0", attr->reserved);
	return 0;
}

static int check_attr(const struct pier_mr_attr *attr)
{
	uint64_t page = pier_host_page();

	if (!attr->ranges || attr->range_count == 0 ||
	    attr->range_count > PIER_MR_PARTS_MAX)
		return pier_fail(EINVAL, "%u ranges at %p: a region has 1 to %d",
				 attr->range_count, (const void *)attr->ranges,
				 PIER_MR_PARTS_MAX);
	if (attr->page_size &&
	    (attr->page_size < page || (attr->page_size & (attr->page_size - 1))))
		return pier_fail(EINVAL,
				 "page_size %" PRIu64 " is not a power of two from the "
				 "host's page of %" PRIu64 " on",
				 attr->page_size, page);
	return check_choices(attr);
}

int pier_read_mr_attr(const struct pier_mr_attr *attr, struct pier_mr_attr *ret_attr)
{
	struct pier_mr_attr known = PIER_MR_ATTR_INIT;
	int error;

	if (!attr)
		return pier_fail(EINVAL, "region attributes: attr is NULL");
	error = pier_read_extensible("region attributes", "PIER_MR_ATTR_INIT", attr,
				     offsetof(struct pier_mr_attr, mapping),
				     sizeof(known), &known);
	if (!error)
		error = check_attr(&known);
	if (!error)
		*ret_attr = known;
	return error;
}

static int reg_attr(struct pier_pd *pd, const struct pier_mr_attr *attr,
		    struct pier_mr **ret_mr)
{
	struct pier_mr_attr known = PIER_MR_ATTR_INIT;
	int error = pier_read_mr_attr(attr, &known);

	return error ? error : pier_register(pd, &known, NULL, ret_mr);
}

int pier_reg_mr_attr(struct pier_pd *pd, const struct pier_mr_attr *attr,
		     struct pier_mr **ret_mr)
{
	PIER_ENTRY();

	return reg_attr(pd, attr, ret_mr);
}

static struct pier_mr_attr attr_of(const struct pier_mr_range *ranges, uint32_t count,
				   int access)
{
	struct pier_mr_attr attr = PIER_MR_ATTR_INIT;

	attr.ranges = ranges;
	attr.range_count = count;
	attr.access = access;
	return attr;
}

int pier_reg_mr_vec(struct pier_pd *pd, const struct pier_mr_range *ranges,
		    uint32_t range_count, int access, struct pier_mr **ret_mr)
{
	PIER_ENTRY();
	struct pier_mr_attr attr = attr_of(ranges, range_count, access);

	return reg_attr(pd, &attr, ret_mr);
}

int pier_reg_mr(struct pier_pd *pd, void *addr, size_t length, int access,
		struct pier_mr **ret_mr)
{
	PIER_ENTRY();
	struct pier_mr_range range = PIER_MR_RANGE_HOST(addr, length);
	struct pier_mr_attr attr = attr_of(&range, 1, access);

	return reg_attr(pd, &attr, ret_mr);
}

int pier_reg_dmabuf_mr(struct pier_pd *pd, uint64_t offset, size_t length, uint64_t iova,
		       int fd, int access, struct pier_mr **ret_mr)
{
	PIER_ENTRY();
	struct pier_mr_range range = PIER_MR_RANGE_DMABUF(fd, offset, length);
	struct pier_mr_attr attr = attr_of(&range, 1, access);

	attr.addressing = PIER_ADDRESSING_IOVA;
	attr.iova = iova;
	return reg_attr(pd, &attr, ret_mr);
}

int pier_reg_buffer_mr(struct pier_pd *pd, struct pier_buffer *buffer, size_t offset,
		       size_t length, int access, enum pier_policy policy,
		       struct pier_mr **ret_mr)
{
	PIER_ENTRY();
	struct pier_mr_range range = PIER_MR_RANGE_BUFFER(buffer, offset, length);
	struct pier_mr_attr attr = attr_of(&range, 1, access);

	attr.policy = policy;
	return reg_attr(pd, &attr, ret_mr);
}

/* The ranges that have the bytes [offset, offset + length) of a region. */
static uint32_t slice_memory(const struct pier_mr *mr, uint64_t offset, uint64_t length,
			     struct pier_mr_range *ret_ranges)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < mr->memory_count && length > 0; i++) {
		struct pier_mr_range range = mr->memory[i].range;
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
	struct pier_mr_attr attr;
	struct pier_mr_range *ranges;
	int error = pier_check_process(&mr->object);

	if (!error)
		error = pier_check_sub(mr, offset, length);
	if (error)
		return error;
	if (mr->window)
		return pier_fail(EINVAL, "a sub-region of a memory window, which has no "
					 "memory of its own: take it of the region that "
					 "the window is bound to");
	ranges = calloc(mr->memory_count, sizeof(*ranges));
	if (!ranges)
		return pier_fail(ENOMEM, "registering a sub-region: out of memory");
	attr = attr_of(ranges, slice_memory(mr, offset, length, ranges), access);
	attr.addressing = PIER_ADDRESSING_IOVA;
	attr.iova = mr->iova + offset;
	attr.policy = mr->policy;
	attr.mapping = mr->mapping;
	attr.split = mr->split;
	error = check_sources(ranges, attr.range_count);
	if (!error)
		error = pier_register(mr->pd, &attr, mr, ret_mr);
	free(ranges);
	return error;
}
