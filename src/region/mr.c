/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include <pier/verbs.h>

#include "core/checked.h"
#include "core/error.h"
#include "core/extensible.h"
#include "mr.h"

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
		[PIER_PATH_PEERMEM] = "peermem", [PIER_PATH_BOUNCE] = "bounce",
		[PIER_PATH_MIXED] = "mixed",	 [PIER_PATH_NIC] = "nic",
	};

	if (path < PIER_PATH_HOST || path > PIER_PATH_NIC)
		return "unknown";
	return names[path];
}

uint64_t pier_mr_iova(const struct pier_mr *mr)
{
	PIER_REFUSE_NULL_AS(0, mr);
	return mr->iova;
}

uint64_t pier_mr_length(const struct pier_mr *mr)
{
	PIER_REFUSE_NULL_AS(0, mr);
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

enum pier_path pier_mr_path(const struct pier_mr *mr)
{
	PIER_REFUSE_NULL_AS(0, mr);
	return mr->path;
}

uint32_t pier_mr_parts(const struct pier_mr *mr)
{
	PIER_REFUSE_NULL_AS(0, mr);
	return mr->parts ? mr->part_count : 1;
}

int pier_mr_part(const struct pier_mr *mr, uint32_t index,
		 struct pier_mr_part_info *ret_part, size_t size)
{
	PIER_REFUSE_NULL(mr, ret_part);
	struct pier_mr_part only = {
		.mr = mr->mr, .length = mr->length, .iova = mr->iova, .path = mr->path
	};
	const struct pier_mr_part *part = mr->parts ? &mr->parts[index] : &only;
	struct pier_mr_part_info info;

	if (index >= pier_mr_parts(mr))
		return pier_fail(ERANGE, "part %u of a region that has %u", index,
				 pier_mr_parts(mr));
	info = (struct pier_mr_part_info){
		.offset = part->start,
		.length = part->length,
		.iova = part->iova,
		.lkey = mr->window ? 0 : part->mr->lkey,
		.rkey = mr->window ? mr->window->rkey : part->mr->rkey,
		.path = part->path,
	};
	pier_write_extensible(&info, sizeof(info), ret_part, size);
	return 0;
}

/* If there is no table of parts, `first` has what the region does not. */
const struct pier_mr_part *pier_mr_part_at(const struct pier_mr *mr, uint32_t index)
{
	while (mr->window && !mr->mr)
		mr = mr->base;
	return mr->parts ? &mr->parts[index] : &mr->first;
}

struct sought_region {
	const struct pier_pd *pd;
	uint32_t lkey;
	char *text;
	size_t size;
};

static bool name_if_sought(const struct pier_object *object, void *context)
{
	const struct sought_region *sought = context;
	const struct pier_mr *mr = (const struct pier_mr *)object;

	if (mr->pd != sought->pd || mr->lkey != sought->lkey || mr->window)
		return false;
	snprintf(sought->text, sought->size,
		 "the region of %" PRIu64 " bytes at %#" PRIx64 " (%s)", mr->length,
		 mr->iova, pier_path_name(mr->path));
	return true;
}

void pier_name_region(const struct pier_pd *pd, uint32_t lkey, char *ret_text,
		      size_t size)
{
	struct sought_region sought = { pd, lkey, ret_text, size };

	ret_text[0] = '\0';
	pier_object_visit(PIER_OBJECT_MR, name_if_sought, &sought);
}

const char *pier_mr_reason(const struct pier_mr *mr)
{
	PIER_REFUSE_NULL_AS(NULL, mr);
	for (uint32_t i = 0; i < pier_mr_parts(mr); i++)
		if (pier_mr_part_at(mr, i)->reason)
			return pier_mr_part_at(mr, i)->reason;
	/* A sub-region takes the path of its base without trying another. */
	return mr->base && mr->path == PIER_PATH_BOUNCE ? pier_mr_reason(mr->base) : "";
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
	PIER_REFUSE_NULL_AS(false, mr);
	return addr >= mr->iova && pier_range_fits(addr - mr->iova, length, mr->length);
}

const struct pier_mr *pier_mr_beneath(const struct pier_mr *mr)
{
	while (mr->window && mr->range_count == 0)
		mr = mr->base;
	return mr;
}

struct ibv_mr *pier_mr_verbs(const struct pier_mr *mr)
{
	PIER_REFUSE_NULL_AS(NULL, mr);
	return mr->window ? NULL : mr->mr;
}

struct ibv_mr *pier_window_under(const struct pier_mr *window)
{
	return window->mr ? window->mr : window->base->mr;
}

void pier_window_bound(struct pier_mr *window, uint32_t rkey, struct pier_list *windows)
{
	pthread_mutex_lock(&window->pd->windows_lock);
	/* The caller has to update the struct (ibv_bind_mw(3)). */
	window->window->mw->rkey = rkey;
	window->window->rkey = rkey;
	pier_list_append(windows, &window->window->link);
	pthread_mutex_unlock(&window->pd->windows_lock);
}

/* A window of type 2 may be deallocated while it is bound (rxe_mw_cleanup()). */
static int dealloc_window(struct pier_window *window)
{
	int error;

	if (!window->mw)
		return 0;
	error = window->pd->device->provider->dealloc_mw(window->mw);
	if (error)
		return error;
	window->mw = NULL;
	pier_list_remove(&window->link);
	return 0;
}

int pier_unbind_window(struct pier_mr *region)
{
	int error;

	pthread_mutex_lock(&region->pd->windows_lock);
	error = dealloc_window(region->window);
	pthread_mutex_unlock(&region->pd->windows_lock);
	return error;
}

int pier_unbind_windows(struct pier_pd *pd, struct pier_list *windows)
{
	int error = 0;

	pthread_mutex_lock(&pd->windows_lock);
	while (!error && !pier_list_empty(windows))
		error = dealloc_window(
			pier_container_of(windows->next, struct pier_window, link));
	pthread_mutex_unlock(&pd->windows_lock);
	return error;
}
