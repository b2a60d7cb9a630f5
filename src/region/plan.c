/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>

#include "buffer/buffer.h"
#include "check.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/page.h"
#include "plan.h"
#include "segment.h"

static int settle_iova(struct pier_mr *region, const struct pier_mr_attr *attr)
{
	uint64_t page = attr->page_size ? attr->page_size : pier_host_page();
	uint64_t address = region->ranges[0].address, end;

	if (attr->addressing == PIER_ADDRESSING_VIRTUAL)
		region->iova = address;
	else if (attr->addressing == PIER_ADDRESSING_ZERO_BASED)
		region->iova = address & (page - 1);
	else
		region->iova = attr->iova;
	if (attr->page_size && !region->base &&
	    !pier_page_agree(address, region->iova, page))
		return pier_fail(EINVAL,
				 "address 0x%" PRIx64 " and iova 0x%" PRIx64
				 " differ modulo page_size %" PRIu64,
				 address, region->iova, page);
	if (!pier_add_u64(region->iova, region->length, &end))
		return pier_fail(EINVAL,
				 "iova 0x%" PRIx64 " and length %" PRIu64
				 " overflow 64 bits",
				 region->iova, region->length);
	return 0;
}

/*
 * A key has the region's addresses where the page rule allows it, and the memory's own
 * elsewhere; those of the first range were asked for.
 */
static uint64_t choose_iova(const struct pier_mr *region, uint32_t index, uint64_t start)
{
	uint64_t iova = region->iova + start;

	if ((index > 0 || region->base) &&
	    !pier_page_agree(region->ranges[index].address, iova, pier_host_page()))
		iova = region->ranges[index].address;
	return iova;
}

/*
 * A mistake in the arguments would fail on every path: report it once, and before
 * anything is registered.
 */
static int check_range(const struct pier_resolved_range *resolved,
		       const struct pier_check_limits *limits, int access)
{
	const struct pier_mr_range *range = &resolved->range;

	if (range->source == PIER_MR_DMABUF)
		return pier_check_dmabuf_numbers(limits, range->offset, range->length,
						 resolved->iova, range->fd, access);
	return pier_check_host(limits, resolved->address, range->length, resolved->iova,
			       access);
}

static int plan_ranges(struct pier_mr *region)
{
	struct pier_check_limits limits = pier_limits_of(region->pd);
	uint64_t start = 0;
	int error = 0;

	for (uint32_t i = 0; i < region->range_count && !error; i++) {
		struct pier_resolved_range *resolved = &region->ranges[i];

		resolved->start = start;
		resolved->iova = choose_iova(region, i, start);
		error = check_range(resolved, &limits, region->access);
		start += resolved->range.length;
	}
	return error;
}

bool pier_device_joins(const struct pier_mr *region)
{
	const struct pier_device *device = region->pd->device;

	return device->provider->reg_parts &&
	       region->range_count <= device->provider->max_parts &&
	       region->length <= device->limits.max_mr_size;
}

/* Pages of a memfd throughout; at the seams, up to the edge of a page. */
static bool has_memfd_pages(const struct pier_mr *region, uint32_t index)
{
	const struct pier_resolved_range *resolved = &region->ranges[index];
	uint64_t mask = pier_host_page() - 1;

	if (resolved->range.source != PIER_MR_BUFFER ||
	    !resolved->range.buffer->backend->memfd)
		return false;
	if (index > 0 && (resolved->address & mask))
		return false;
	return index + 1 == region->range_count ||
	       ((resolved->address + resolved->range.length) & mask) == 0;
}

static bool can_be_one_dmabuf(const struct pier_mr *region)
{
	if (!region->pd->device->dmabuf)
		return false;
	for (uint32_t i = 0; i < region->range_count; i++)
		if (!has_memfd_pages(region, i))
			return false;
	return pier_find_joiner() != NULL;
}

/* One key if it is needed and can be had. A requested key only a device can give. */
static enum pier_key_plan plan_keys(const struct pier_mr *region)
{
	if (region->requested_key)
		return PIER_KEY_OF_DEVICE;
	if (region->range_count == 1)
		return PIER_KEYS_OF_PARTS;
	if (pier_device_joins(region))
		return PIER_KEY_OF_DEVICE;
	if (can_be_one_dmabuf(region))
		return PIER_KEY_OF_DMABUF;
	return region->split == PIER_SPLIT_NEVER ? PIER_KEY_UNAVAILABLE
						 : PIER_KEYS_OF_PARTS;
}

/* Whether only completions show that a NIC's writes have arrived in a range. */
static bool takes_any_order(const struct pier_mr_range *range)
{
	return range->source == PIER_MR_BUFFER && !range->buffer->memory.cpu &&
	       range->buffer->facts.any_order;
}

/*
 * A peer's writes have no completion here: a program, or a kernel on the device, may wait
 * for their last byte. ibv_reg_mr(3) keeps the semantics of completions only. A window
 * could let a peer write, too.
 */
static bool may_relax(const struct pier_mr *region, enum pier_ordering ordering)
{
	const int remote = PIER_ACCESS_REMOTE_WRITE | PIER_ACCESS_REMOTE_ATOMIC |
			   PIER_ACCESS_MW_BIND;

	if (region->pd->device->switches.relaxed_ordering == PIER_SWITCH_ON)
		return true;
	if (!(region->access & PIER_ACCESS_LOCAL_WRITE) ||
	    ((region->access & remote) && ordering != PIER_ORDERING_COMPLETIONS))
		return false;
	for (uint32_t i = 0; i < region->range_count; i++)
		if (!takes_any_order(&region->ranges[i].range))
			return false;
	return true;
}

static void choose_ordering(struct pier_mr *region, enum pier_ordering ordering)
{
	if (region->pd->device->switches.relaxed_ordering == PIER_SWITCH_OFF)
		region->access &= ~PIER_ACCESS_RELAXED_ORDERING;
	else if (ordering != PIER_ORDERING_STRICT && may_relax(region, ordering))
		region->access |= PIER_ACCESS_RELAXED_ORDERING;
}

int pier_plan_region(struct pier_mr *region, const struct pier_mr_attr *attr)
{
	int error = settle_iova(region, attr);

	if (!error)
		error = plan_ranges(region);
	if (error)
		return error;
	region->key_plan = plan_keys(region);
	choose_ordering(region, attr->ordering);
	return 0;
}
