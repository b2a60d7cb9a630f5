/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "buffer/buffer.h"
#include "core/error.h"
#include "core/object.h"
#include "dereg.h"
#include "join.h"
#include "parts.h"
#include "path.h"
#include "plan.h"
#include "register.h"
#include "resolve.h"

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
