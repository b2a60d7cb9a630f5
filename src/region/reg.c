/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "buffer/buffer.h"
#include "core/caller.h"
#include "core/error.h"
#include "core/extensible.h"
#include "core/object.h"
#include "core/page.h"
#include "canary.h"
#include "dereg.h"
#include "join.h"
#include "parts.h"
#include "path.h"
#include "plan.h"
#include "reg.h"
#include "resolve.h"

static_assert(sizeof(struct pier_mr_attr) ==
		      offsetof(struct pier_mr_attr, ordering) + sizeof(uint32_t),
	      "no padding at the end, where a new field would not change the size");

/* Errors: -EINVAL not one of enum pier_policy. */
static int check_policy(enum pier_policy policy)
{
	if (policy >= PIER_POLICY_DIRECT && policy <= PIER_POLICY_BOUNCE)
		return 0;
	return pier_fail(EINVAL, "policy %d: not one of enum pier_policy", (int)policy);
}

static int check_choices(const struct pier_mr_attr *attr)
{
	if (attr->addressing < PIER_ADDRESSING_VIRTUAL ||
	    attr->addressing > PIER_ADDRESSING_IOVA)
		return pier_fail(EINVAL, "addressing %d: not one of enum pier_addressing",
				 (int)attr->addressing);
	if (attr->split < PIER_SPLIT_SEAMS || attr->split > PIER_SPLIT_NEVER)
		return pier_fail(EINVAL, "split %d: not one of enum pier_split",
				 (int)attr->split);
	if (attr->mapping < PIER_MAPPING_AUTO || attr->mapping > PIER_MAPPING_PCIE)
		return pier_fail(EINVAL, "mapping %d: not one of enum pier_mapping",
				 (int)attr->mapping);
	if (attr->ordering < PIER_ORDERING_AUTO ||
	    attr->ordering > PIER_ORDERING_COMPLETIONS)
		return pier_fail(EINVAL, "ordering %d: not one of enum pier_ordering",
				 (int)attr->ordering);
	if (attr->ordering == PIER_ORDERING_STRICT &&
	    (attr->access & PIER_ACCESS_RELAXED_ORDERING))
		return pier_fail(EINVAL, "ordering is strict, and access has "
					 "PIER_ACCESS_RELAXED_ORDERING");
	return check_policy(attr->policy);
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
	struct pier_mr_attr known;
	int error;

	pier_mr_attr_init(&known);
	if (!attr)
		return pier_fail(EINVAL, "region attributes: attr is NULL");
	error = pier_read_extensible("region attributes", "pier_mr_attr_init()", attr,
				     offsetof(struct pier_mr_attr, mapping),
				     sizeof(known), &known);
	if (!error)
		error = check_attr(&known);
	if (!error)
		*ret_attr = known;
	return error;
}

static int register_by_plan(struct pier_mr *region)
{
	int error;

	switch (region->key_plan) {
	case PIER_KEY_OF_DEVICE:
		error = pier_join_by_device(region);
		break;
	case PIER_KEY_OF_DMABUF:
		error = pier_join_by_dmabuf(region);
		break;
	case PIER_KEY_UNAVAILABLE:
		return pier_fail_to_join(region);
	default:
		return pier_register_parts(region);
	}
	/* The driver did not join these ranges; keys of their own may still do. */
	if (error == -EOPNOTSUPP && !region->requested_key &&
	    region->split != PIER_SPLIT_NEVER)
		error = pier_register_parts(region);
	return error;
}

static void describe_region(const struct pier_object *object, char *ret_text, size_t size)
{
	const struct pier_mr *region = (const struct pier_mr *)object;

	snprintf(ret_text, size, "region of %" PRIu64 " bytes (%s) on %s", region->length,
		 pier_path_name(region->path), region->pd->device->name);
}

/* Others have no one key for their own addresses, or (a window) none at all. */
static void set_uses(struct pier_mr *region)
{
	if (!region->mr || region->parts)
		return;
	region->lkey = region->mr->lkey;
	region->uses = PIER_HOT_GATHER;
	if (region->access & PIER_ACCESS_LOCAL_WRITE)
		region->uses |= PIER_HOT_SCATTER;
}

void pier_track_region(struct pier_mr *region)
{
	struct pier_mr *base = region->base;

	if (base)
		atomic_fetch_add(&base->children, 1);
	atomic_fetch_add(&region->pd->children, 1);
	set_uses(region);
	region->object.describe = describe_region;
	pier_object_track(&region->object, PIER_OBJECT_MR,
			  base ? &base->object : &region->pd->object);
}

/* The driver has its own references now, and the caller may close its fds. */
static void forget_fds(struct pier_mr *region)
{
	for (uint32_t i = 0; i < region->range_count; i++) {
		struct pier_resolved_range *resolved = &region->ranges[i];

		if (resolved->owns_fd)
			close(resolved->range.fd);
		resolved->owns_fd = false;
		resolved->range.fd = -1;
	}
}

/* The CPU's address of a part; NULL: it has none, or not one for all bytes. */
static void *cpu_address(const struct pier_mr *region, uint64_t start, uint64_t length)
{
	const struct pier_resolved_range *resolved = region->ranges;
	void *addr = NULL;

	while (start - resolved->start >= resolved->range.length)
		resolved++;
	start -= resolved->start;
	/* Of joined ranges the first one has an address, and the others have their own.
	 */
	if (length > resolved->range.length - start)
		return NULL;
	if (resolved->range.source == PIER_MR_HOST)
		return (char *)resolved->range.addr + start;
	if (resolved->range.source == PIER_MR_BUFFER &&
	    resolved->range.buffer->memory.cpu)
		pier_reach_buffer(resolved->range.buffer, resolved->range.offset + start,
				  &addr);
	return addr;
}

/* The NIC uses the bytes of a bounce buffer, and the CPU finds the memory's own. */
static void note_far_part(struct pier_mr *region, struct pier_mr_part *part,
			  uint64_t start, uint64_t length, uint64_t iova)
{
	void *addr = cpu_address(region, start, length);

	if (part->bounce || !addr || (uintptr_t)addr != iova)
		pier_add_far_key(region->pd, &part->far, part->mr->lkey);
}

static void note_far_parts(struct pier_mr *region)
{
	if (!region->parts)
		note_far_part(region, &region->first, 0, region->length, region->iova);
	for (uint32_t i = 0; region->parts && i < region->part_count; i++) {
		struct pier_mr_part *part = &region->parts[i];

		note_far_part(region, part, part->start, part->length, part->iova);
	}
}

int pier_register_region(struct pier_mr *region)
{
	int error = register_by_plan(region);

	if (error)
		return error;
	note_far_parts(region);
	forget_fds(region);
	pier_track_region(region);
	return 0;
}

int pier_register(struct pier_pd *pd, const struct pier_mr_attr *attr,
		  struct pier_mr *base, struct pier_mr **ret_mr)
{
	struct pier_mr *region = NULL;
	int error = pier_resolve_region(pd, attr, base, &region);

	if (!error)
		error = pier_plan_region(region, attr);
	if (!error)
		error = pier_register_region(region);
	if (error) {
		pier_free_region(region);
		return error;
	}
	*ret_mr = region;
	return 0;
}

/*
 * The public calls that register. Each describes what it wants by attributes, and
 * pier_register() takes it from there.
 */

static struct pier_mr_attr attr_for(const struct pier_mr_range *range, int access)
{
	return (struct pier_mr_attr){
		.ranges = range,
		.range_count = 1,
		.access = access,
	};
}

int pier_reg_mr(struct pier_pd *pd, void *addr, size_t length, int access,
		struct pier_mr **ret_mr)
{
	PIER_ENTRY();
	struct pier_mr_range range = pier_mr_range_host(addr, length);
	struct pier_mr_attr attr = attr_for(&range, access);

	return pier_register(pd, &attr, NULL, ret_mr);
}

int pier_reg_dmabuf_mr(struct pier_pd *pd, uint64_t offset, size_t length, uint64_t iova,
		       int fd, int access, struct pier_mr **ret_mr)
{
	PIER_ENTRY();
	struct pier_mr_range range = pier_mr_range_dmabuf(fd, offset, length);
	struct pier_mr_attr attr = attr_for(&range, access);

	attr.addressing = PIER_ADDRESSING_IOVA;
	attr.iova = iova;
	return pier_register(pd, &attr, NULL, ret_mr);
}

int pier_reg_buffer_mr(struct pier_pd *pd, struct pier_buffer *buffer, size_t offset,
		       size_t length, int access, enum pier_policy policy,
		       struct pier_mr **ret_mr)
{
	PIER_ENTRY();
	struct pier_mr_range range = pier_mr_range_buffer(buffer, offset, length);
	struct pier_mr_attr attr = attr_for(&range, access);
	int error = check_policy(policy);

	attr.policy = policy;
	return error ? error : pier_register(pd, &attr, NULL, ret_mr);
}

int pier_reg_mr_attr(struct pier_pd *pd, const struct pier_mr_attr *attr,
		     struct pier_mr **ret_mr)
{
	PIER_ENTRY();
	struct pier_mr_attr known;
	int error = pier_read_mr_attr(attr, &known);

	return error ? error : pier_register(pd, &known, NULL, ret_mr);
}

int pier_reg_mr_vec(struct pier_pd *pd, const struct pier_mr_range *ranges,
		    uint32_t range_count, int access, struct pier_mr **ret_mr)
{
	PIER_ENTRY();
	struct pier_mr_attr attr;
	int error;

	pier_mr_attr_init(&attr);
	attr.ranges = ranges;
	attr.range_count = range_count;
	attr.access = access;
	error = pier_read_mr_attr(&attr, &attr);
	return error ? error : pier_register(pd, &attr, NULL, ret_mr);
}

void pier_mr_query(const struct pier_mr *mr, struct pier_mr_info *ret_info, size_t size)
{
	struct pier_mr_info info = {
		.pd = mr->pd,
		.context = mr->context,
		.iova = mr->iova,
		.length = mr->length,
		.access = mr->access,
		.lkey = pier_mr_lkey(mr),
		.rkey = pier_mr_rkey(mr),
		.parts = pier_mr_parts(mr),
		.path = mr->path,
		.mapping = pier_mr_part_at(mr, 0)->mapping,
		.is_window = mr->window != NULL,
		.reason = pier_mr_reason(mr),
		.canary = pier_describe_canary(mr),
	};

	pier_write_extensible(&info, sizeof(info), ret_info, size);
}
