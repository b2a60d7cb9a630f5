/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include <pier/verbs.h>

#include "buffer/buffer.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/list.h"
#include "device/device.h"
#include "device/pd.h"
#include "preload.h"
#include "region/reg.h"

/* The regions of the program that pier registered, and the protection domains under them.
 */

enum {
	BUCKETS = 1024,
	/* Flags that a driver may ignore, of which pier knows one. */
	UNKNOWN_HINTS = IBV_ACCESS_OPTIONAL_RANGE & ~IBV_ACCESS_RELAXED_ORDERING,
};

/* A protection domain of the program in which pier has registered. */
struct import {
	struct pier_list link;
	const struct ibv_pd *verbs;
	struct pier_pd *pd;
};

struct registration {
	struct pier_list link;
	const struct ibv_mr *mr; /* libibverbs' own, which the program has */
	struct pier_mr *region;
};

/* `buckets` and `imports` are lists without a head while their links are NULL. */
static struct {
	struct pier_fork_mutex lock;
	struct pier_list imports;
	struct pier_list buckets[BUCKETS];
	atomic_size_t count; /* of registrations */
} known = { .lock = PIER_FORK_MUTEX };

static struct pier_list *ready(struct pier_list *head)
{
	if (!head->next)
		pier_list_init(head);
	return head;
}

static struct pier_list *bucket_of(const struct ibv_mr *mr)
{
	uintptr_t address = (uintptr_t)mr;

	return ready(&known.buckets[(address >> 4 ^ address >> 14) % BUCKETS]);
}

/* With the lock held. */
static struct import *find_import(const struct ibv_pd *verbs)
{
	pier_list_for_each(struct import, import, ready(&known.imports), link)
		if (import->verbs == verbs)
			return import;
	return NULL;
}

/* Bytes of a program are not moved to test a path, unless the user asks for it. */
static void choose_canary(struct pier_device *device)
{
	if (device->switches.canary == PIER_SWITCH_AUTO)
		device->switches.canary = PIER_SWITCH_OFF;
}

/* Two threads may import at once; the second import goes away again. */
static int import_pd(struct ibv_pd *verbs, struct pier_pd **ret_pd)
{
	struct import *made = malloc(sizeof(*made)), *found;
	int error = made ? 0 : pier_fail(ENOMEM, "no memory for a protection domain");

	if (!error)
		error = pier_pd_import(verbs, ret_pd);
	if (error) {
		free(made);
		return error;
	}
	choose_canary((*ret_pd)->device);
	*made = (struct import){ .verbs = verbs, .pd = *ret_pd };
	pier_fork_lock(&known.lock);
	found = find_import(verbs);
	if (!found)
		pier_list_append(ready(&known.imports), &made->link);
	pier_fork_unlock(&known.lock);
	if (found) {
		pier_pd_dealloc(made->pd);
		*ret_pd = found->pd;
		free(made);
	}
	return 0;
}

static int pd_of(struct ibv_pd *verbs, struct pier_pd **ret_pd)
{
	struct import *found;

	pier_fork_lock(&known.lock);
	found = find_import(verbs);
	if (found)
		*ret_pd = found->pd;
	pier_fork_unlock(&known.lock);
	return found ? 0 : import_pd(verbs, ret_pd);
}

/*
 * Make a buffer of memory of a GPU. NULL: the CPU reaches the memory too, as page-locked
 * host memory and managed memory. It is registered by its address, as without pier.
 *
 * Errors: those of pier_find_owner() and of pier_adopt_memory().
 */
static int wrap(const struct preload_request *request, struct pier_buffer **ret_buffer)
{
	uint64_t address = (uintptr_t)request->addr;
	const struct pier_backend *backend;
	struct pier_memory memory;
	int error = pier_find_owner(request->addr, request->length, &backend, &memory);

	*ret_buffer = NULL;
	if (error)
		return error;
	if (memory.cpu) {
		pier_release_memory(backend, &memory);
		return 0;
	}
	return pier_adopt_memory(backend, &memory, address, request->length, ret_buffer);
}

/* One key, with exactly the rights and the order that the program asks for. */
static int register_buffer(struct pier_pd *pd, const struct preload_request *request,
			   struct pier_buffer *buffer, struct pier_mr **ret_region)
{
	struct pier_mr_range range = pier_mr_range_buffer(buffer, 0, request->length);
	struct pier_mr_attr attr;

	pier_mr_attr_init(&attr);
	attr.ranges = &range;
	attr.range_count = 1;
	attr.access = (uint32_t)request->access & ~(uint32_t)UNKNOWN_HINTS;
	attr.addressing = PIER_ADDRESSING_IOVA;
	attr.iova = request->iova;
	attr.split = PIER_SPLIT_NEVER;
	if (!(request->access & IBV_ACCESS_RELAXED_ORDERING))
		attr.ordering = PIER_ORDERING_STRICT;
	return pier_register(pd, &attr, NULL, ret_region);
}

static void describe(const struct pier_buffer *buffer, const struct pier_mr *region,
		     struct preload_facts *ret_facts)
{
	const struct pier_memory_facts *facts = &buffer->facts;

	if (!ret_facts)
		return;
	snprintf(ret_facts->kind, sizeof(ret_facts->kind), "%s%s%s%s%s",
		 buffer->backend->name, facts->unit[0] ? ":" : "", facts->unit,
		 facts->kind[0] ? ", " : "", facts->kind);
	if (region) {
		ret_facts->path = pier_path_name(pier_mr_path(region));
		ret_facts->mapping = pier_mapping_name(region->first.mapping);
	}
}

/* From here on dereg_mr() of the program finds it. */
static void note(struct registration *made)
{
	pier_fork_lock(&known.lock);
	pier_list_append(bucket_of(made->mr), &made->link);
	atomic_fetch_add(&known.count, 1);
	pier_fork_unlock(&known.lock);
}

static int register_memory(const struct preload_request *request,
			   struct pier_buffer *buffer, struct preload_facts *ret_facts,
			   struct ibv_mr **ret_mr)
{
	struct registration *made = malloc(sizeof(*made));
	struct pier_mr *region;
	struct pier_pd *pd;
	int error = made ? pd_of(request->pd, &pd)
			 : pier_fail(ENOMEM, "no memory for a registration");

	if (!error)
		error = register_buffer(pd, request, buffer, &region);
	if (error) {
		free(made);
		return error;
	}
	describe(buffer, region, ret_facts);
	*ret_mr = region->mr;
	/* As ibv_reg_mr(3) leaves it; libibverbs puts the dma-buf's offset there. */
	(*ret_mr)->addr = request->addr;
	*made = (struct registration){ .mr = *ret_mr, .region = region };
	note(made);
	return 0;
}

enum preload_outcome preload_register(const struct preload_request *request,
				      struct ibv_mr **ret_mr,
				      struct preload_facts *ret_facts)
{
	struct pier_buffer *buffer = NULL;
	int error = request->addr && request->length ? wrap(request, &buffer) : 0;

	if (ret_facts)
		*ret_facts = (struct preload_facts){ .kind = "unknown",
						     .path = "",
						     .mapping = "" };
	if (error)
		return PRELOAD_FAILED;
	if (!buffer)
		return PRELOAD_HOST;
	describe(buffer, NULL, ret_facts);
	error = register_memory(request, buffer, ret_facts, ret_mr);
	if (!error)
		return PRELOAD_DONE;
	pier_free_buffer_alone(buffer);
	return PRELOAD_FAILED;
}

/* With the lock held. */
static struct registration *find_registration(const struct ibv_mr *mr)
{
	pier_list_for_each(struct registration, one, bucket_of(mr), link)
		if (one->mr == mr)
			return one;
	return NULL;
}

static struct registration *look_up(const struct ibv_mr *mr, bool take)
{
	struct registration *found;

	/* Registering host memory alone costs nothing here. */
	if (atomic_load_explicit(&known.count, memory_order_acquire) == 0)
		return NULL;
	pier_fork_lock(&known.lock);
	found = find_registration(mr);
	if (found && take) {
		pier_list_remove(&found->link);
		atomic_fetch_sub(&known.count, 1);
	}
	pier_fork_unlock(&known.lock);
	return found;
}

bool preload_owns(const struct ibv_mr *mr)
{
	return look_up(mr, false);
}

/* Out of the table first: the region's address may be another's as soon as it is gone. */
int preload_deregister(struct ibv_mr *mr, bool *ret_owned)
{
	struct registration *found = look_up(mr, true);
	struct pier_buffer *buffer;
	int error;

	*ret_owned = found;
	if (!found)
		return 0;
	buffer = found->region->ranges[0].range.buffer;
	error = pier_mr_dereg(found->region);
	if (error) {
		note(found);
		return -error;
	}
	pier_free_buffer_alone(buffer);
	free(found);
	return 0;
}

/* Take one out of the list; NULL: none matches. */
static struct import *take_import(const struct ibv_pd *pd,
				  const struct ibv_context *context)
{
	struct import *found = NULL;

	pier_fork_lock(&known.lock);
	pier_list_for_each(struct import, import, ready(&known.imports), link)
		if (import->verbs == pd || import->pd->device->context == context)
			found = import;
	if (found)
		pier_list_remove(&found->link);
	pier_fork_unlock(&known.lock);
	return found;
}

/*
 * With regions in it, a protection domain cannot be freed, here or in libibverbs: it
 * stays.
 */
static void forget(const struct ibv_pd *pd, const struct ibv_context *context)
{
	struct pier_list kept;
	struct import *import;

	pier_list_init(&kept);
	while ((import = take_import(pd, context))) {
		if (pier_pd_dealloc(import->pd) == 0)
			free(import);
		else
			pier_list_append(&kept, &import->link);
	}
	pier_fork_lock(&known.lock);
	while (!pier_list_empty(&kept))
		pier_list_append(ready(&known.imports), pier_list_take(&kept));
	pier_fork_unlock(&known.lock);
}

void preload_forget_pd(const struct ibv_pd *pd)
{
	forget(pd, NULL);
}

void preload_forget_context(const struct ibv_context *context)
{
	forget(NULL, context);
}
