/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "core/error.h"
#include "dereg.h"
#include "reg.h"
#include "sub.h"
#include "mr.h"
#include "window_region.h"

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
	return pier_reg_sub_mr(
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

int pier_make_window(struct pier_mr *mr, uint64_t offset, uint64_t length, int access,
		     struct pier_mr **ret_window)
{
	struct pier_mr *region;
	int error = make_region(mr, offset, length, &region);

	if (error)
		return error;
	region->access = access;
	error = region->parts ? fail_parts(region) : add_window(region);
	if (error) {
		/* This keeps the sentence of the failure. */
		pier_dereg_mr(region);
		return error;
	}
	*ret_window = region;
	return 0;
}
