/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "bounce.h"
#include "buffer/buffer.h"
#include "core/error.h"
#include "core/object.h"
#include "dereg.h"
#include "device/pd.h"
#include "mr.h"

/* Deregistering, and cleaning up after a registration that failed. */

static void drop_part(struct pier_mr_part *part)
{
	/* Most regions have neither, and the calls are not free. */
	if (!part->bounce && !part->reason)
		return;
	pier_bounce_put(part->bounce);
	free(part->reason);
	part->bounce = NULL;
	part->reason = NULL;
}

static void release_range(struct pier_resolved_range *resolved)
{
	if (resolved->owns_fd)
		close(resolved->range.fd);
	if (resolved->held)
		pier_buffer_unhold(resolved->range.buffer);
	if (resolved->wrapped)
		pier_free_buffer_alone(resolved->range.buffer);
}

void pier_free_region(struct pier_mr *region)
{
	if (!region)
		return;
	drop_part(&region->first);
	for (uint32_t i = 0; i < region->range_count; i++)
		release_range(&region->ranges[i]);
	if (region->parts && region->parts != &region->first)
		free(region->parts);
	if (region->window)
		free(region->window);
	free(region);
}

/* Its key leaves the PD after the device has given it up, and a failure changes nothing.
 */
static int dereg_part(struct pier_mr *region, struct pier_mr_part *part,
		      struct ibv_mr *mr)
{
	int error = region->pd->device->provider->dereg_mr(mr);

	if (!error)
		pier_remove_far_key(region->pd, &part->far);
	return error;
}

static int dereg_last_part(struct pier_mr *region)
{
	struct pier_mr_part *part = &region->parts[region->part_count - 1];
	int error = dereg_part(region, part, part->mr);

	if (error)
		return error;
	drop_part(part);
	region->part_count--;
	return 0;
}

int pier_dereg_parts(struct pier_mr *region)
{
	int error = 0;

	/* A window may have no verbs region of its own. */
	if (!region->parts)
		return region->mr ? dereg_part(region, &region->first, region->mr) : 0;
	while (!error && region->part_count > 0)
		error = dereg_last_part(region);
	return error;
}

static const char *find_use(const struct pier_mr *mr)
{
	const char *use = NULL;

	/* A window has no lkey, so no request of this end can use it. */
	if (mr->window || !atomic_load(&mr->pd->used))
		return NULL;
	if (!mr->parts)
		return pier_region_in_use(mr->pd, mr->mr->lkey);
	for (uint32_t i = 0; i < mr->part_count && !use; i++)
		use = pier_region_in_use(mr->pd, mr->parts[i].mr->lkey);
	return use;
}

/* Requests of peers are not known here: they will fail, because the key is gone. */
static int check_unused(const struct pier_mr *mr)
{
	unsigned int children = atomic_load(&mr->children);
	const char *use;

	if (mr->cached)
		return pier_fail(
			EINVAL,
			"deregistering %" PRIu64 " bytes on %s: the region is a "
			"registration cache's; return it with pier_mr_cache_put()",
			mr->length, mr->pd->device->name);
	if (children)
		return pier_fail(EBUSY,
				 "deregistering %" PRIu64
				 " bytes on %s: the region has %u sub-region%s",
				 mr->length, mr->pd->device->name, children,
				 children == 1 ? "" : "s");
	if (atomic_load(&mr->counters))
		return pier_fail(EBUSY,
				 "deregistering %" PRIu64
				 " bytes on %s: a counter is bound to the region; "
				 "pier_counter_unbind() ends that",
				 mr->length, mr->pd->device->name);
	use = find_use(mr);
	if (use)
		return pier_fail(
			EBUSY,
			"deregistering %" PRIu64 " bytes on %s: in use by a %s that is "
			"outstanding, or complete and not collected, on a channel of "
			"this protection domain",
			mr->length, mr->pd->device->name, use);
	return 0;
}

int pier_dereg_mr(struct pier_mr *mr)
{
	struct pier_mr *base;
	int error;

	if (!mr)
		return 0;
	error = pier_check_process(&mr->object);
	if (!error)
		error = check_unused(mr);
	if (error)
		return error;
	pier_clear_error();
	error = mr->window ? pier_unbind_window(mr) : 0;
	if (!error)
		error = pier_dereg_parts(mr);
	if (error)
		return pier_fail_because(error, "deregistering %" PRIu64 " bytes on %s",
					 mr->length, mr->pd->device->name);
	base = mr->base;
	pier_object_untrack(&mr->object);
	atomic_fetch_sub(&mr->pd->children, 1);
	pier_free_region(mr);
	if (base)
		atomic_fetch_sub(&base->children, 1);
	return 0;
}
