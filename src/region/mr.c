/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include <pier/verbs.h>

#include "buffer/buffer.h"
#include "mr.h"
#include "stage.h"
#include "window.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/object.h"

static_assert((int)PIER_ACCESS_LOCAL_WRITE == IBV_ACCESS_LOCAL_WRITE, "as verbs");
static_assert((int)PIER_ACCESS_REMOTE_WRITE == IBV_ACCESS_REMOTE_WRITE, "as verbs");
static_assert((int)PIER_ACCESS_REMOTE_READ == IBV_ACCESS_REMOTE_READ, "as verbs");
static_assert((int)PIER_ACCESS_REMOTE_ATOMIC == IBV_ACCESS_REMOTE_ATOMIC, "as verbs");
static_assert((int)PIER_ACCESS_MW_BIND == IBV_ACCESS_MW_BIND, "as verbs");
static_assert((int)PIER_ACCESS_ON_DEMAND == IBV_ACCESS_ON_DEMAND, "as verbs");
static_assert((int)PIER_ACCESS_RELAXED_ORDERING == IBV_ACCESS_RELAXED_ORDERING,
	      "as verbs");

const char *pier_path_name(enum pier_path path)
{
	static const char *const names[] = {
		[PIER_PATH_HOST] = "host",	 [PIER_PATH_DMABUF] = "dma-buf",
		[PIER_PATH_PEERMEM] = "peermem", [PIER_PATH_STAGED] = "staged",
		[PIER_PATH_MIXED] = "mixed",
	};

	if (path < PIER_PATH_HOST || path > PIER_PATH_MIXED)
		return "unknown";
	return names[path];
}

/* Those that the region does not own are the caller's, who may close them now. */
void pier_forget_fds(struct pier_mr *region)
{
	for (uint32_t i = 0; i < region->memory_count; i++) {
		struct pier_mr_memory *memory = &region->memory[i];

		if (memory->owns_fd)
			close(memory->range.fd);
		memory->owns_fd = false;
		memory->range.fd = -1;
	}
}

void pier_drop_part(struct pier_mr_part *part)
{
	pier_put_stage(part->stage);
	free(part->why);
	part->stage = NULL;
	part->why = NULL;
}

void pier_free_region(struct pier_mr *region)
{
	pier_forget_fds(region);
	pier_drop_part(&region->first);
	for (uint32_t i = 0; i < region->memory_count; i++) {
		struct pier_mr_memory *memory = &region->memory[i];

		if (memory->held)
			pier_buffer_unhold(memory->range.buffer);
		if (memory->wrapped)
			pier_free_buffer_alone(memory->range.buffer);
	}
	if (region->parts != &region->first)
		free(region->parts);
	free(region->window);
	free(region);
}

static int dereg_last_part(struct pier_mr *region)
{
	const struct pier_provider *provider = region->pd->device->provider;
	int error = provider->dereg_mr(region->parts[region->part_count - 1].mr);

	if (!error)
		pier_drop_part(&region->parts[--region->part_count]);
	return error;
}

int pier_dereg_parts(struct pier_mr *region)
{
	const struct pier_provider *provider = region->pd->device->provider;
	int error = 0;

	/* A window may have no region but its base's. */
	if (!region->parts)
		return region->mr ? provider->dereg_mr(region->mr) : 0;
	while (!error && region->part_count > 0)
		error = dereg_last_part(region);
	return error;
}

static const char *find_use(const struct pier_mr *mr)
{
	const char *use = NULL;

	/* A window has no lkey: nothing of this end can use it. */
	if (mr->window)
		return NULL;
	if (!mr->parts)
		return pier_region_in_use(mr->pd, mr->mr->lkey);
	for (uint32_t i = 0; i < mr->part_count && !use; i++)
		use = pier_region_in_use(mr->pd, mr->parts[i].mr->lkey);
	return use;
}

/* Peers' requests are not known here: they find that the key is gone. */
static int check_unused(const struct pier_mr *mr)
{
	unsigned int children = atomic_load(&mr->children);
	const char *use;

	if (mr->cached)
		return pier_fail(
			EINVAL,
			"deregistering %" PRIu64 " bytes on %s: the region is a "
			"registration cache's; pier_mr_cache_put() gives it back",
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
	error = pier_unbind_window(mr);
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

uint64_t pier_mr_iova(const struct pier_mr *mr)
{
	return mr->iova;
}

size_t pier_mr_length(const struct pier_mr *mr)
{
	return (size_t)mr->length;
}

uint32_t pier_mr_lkey(const struct pier_mr *mr)
{
	return mr->window ? 0 : mr->mr->lkey;
}

uint32_t pier_mr_rkey(const struct pier_mr *mr)
{
	return mr->window ? mr->window->rkey : mr->mr->rkey;
}

int pier_mr_access(const struct pier_mr *mr)
{
	return mr->access;
}

enum pier_path pier_mr_path(const struct pier_mr *mr)
{
	return mr->path;
}

bool pier_mr_is_window(const struct pier_mr *mr)
{
	return mr->window != NULL;
}

void *pier_mr_context(const struct pier_mr *mr)
{
	return mr->context;
}

struct pier_pd *pier_mr_pd(const struct pier_mr *mr)
{
	return mr->pd;
}

uint32_t pier_mr_parts(const struct pier_mr *mr)
{
	return mr->parts ? mr->part_count : 1;
}

int pier_mr_part(const struct pier_mr *mr, uint32_t index,
		 struct pier_mr_part_info *ret_part)
{
	struct pier_mr_part only = {
		.mr = mr->mr, .length = mr->length, .iova = mr->iova, .path = mr->path
	};
	const struct pier_mr_part *part = mr->parts ? &mr->parts[index] : &only;

	if (index >= pier_mr_parts(mr))
		return pier_fail(ERANGE, "part %u of a region that has %u", index,
				 pier_mr_parts(mr));
	*ret_part = (struct pier_mr_part_info){
		.offset = part->start,
		.length = part->length,
		.iova = part->iova,
		.lkey = mr->window ? 0 : part->mr->lkey,
		.rkey = mr->window ? mr->window->rkey : part->mr->rkey,
		.path = part->path,
	};
	return 0;
}

/* Of one with a single part at its own addresses, `first` has what is not in the region.
 */
const struct pier_mr_part *pier_mr_part_at(const struct pier_mr *mr, uint32_t index)
{
	while (mr->window && !mr->mr)
		mr = mr->base;
	return mr->parts ? &mr->parts[index] : &mr->first;
}

const char *pier_mr_reason(const struct pier_mr *mr)
{
	for (uint32_t i = 0; i < pier_mr_parts(mr); i++)
		if (pier_mr_part_at(mr, i)->why)
			return pier_mr_part_at(mr, i)->why;
	/* It took the path of its base without asking for another. */
	return mr->base && mr->path == PIER_PATH_STAGED ? pier_mr_reason(mr->base) : "";
}

enum pier_mapping pier_mr_mapping(const struct pier_mr *mr)
{
	return pier_mr_part_at(mr, 0)->mapping;
}

const struct pier_mr_part *pier_mr_find_part(const struct pier_mr *mr, uint64_t offset)
{
	uint32_t first = 0, count = mr->part_count;

	while (count > 1) {
		uint32_t half = count / 2;

		if (mr->parts[first + half].start <= offset) {
			first += half;
			count -= half;
		} else {
			count = half;
		}
	}
	return &mr->parts[first];
}

bool pier_mr_encloses(const struct pier_mr *mr, uint64_t addr, uint64_t length)
{
	return addr >= mr->iova && pier_range_fits(addr - mr->iova, length, mr->length);
}

struct ibv_mr *pier_mr_verbs(const struct pier_mr *mr)
{
	return mr->window ? NULL : mr->mr;
}
