/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "cache.h"
#include "identity.h"
#include "index.h"
#include "reap.h"
#include "buffer/buffer.h"
#include "core/caller.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/page.h"
#include "region/mr.h"

/* A request for a region. */
struct request {
	struct pier_mr_cache *cache;
	struct pier_buffer *buffer; /* the caller's, or NULL: a pointer */
	size_t offset;		    /* in the buffer */
	uint64_t start, end;
	int access;
	const void *caller; /* set by a miss: a hit creates nothing, and must be cheap */
};

/* How the cache knows that a region still has the memory that was registered. */
enum guard {
	GUARD_NONE,	/* it does not know, and keeps no region */
	GUARD_OWNED,	/* pier_buffer_free() drops it */
	GUARD_IDENTITY, /* it asks the backend at each hit */
	GUARD_WATCH,	/* the kernel reports unmapped memory */
	GUARD_CALLER,	/* pier_mr_cache_invalidate() */
};

static const struct pier_backend *request_backend(const struct request *request)
{
	return request->buffer ? request->buffer->backend : NULL;
}

/*
 * Hand out a kept region, or return NULL. It counts as a hit at once; reject_entry()
 * undoes that.
 */
static struct pier_cache_entry *take_kept(const struct request *request)
{
	struct pier_mr_cache *cache = request->cache;
	struct pier_cache_entry *entry;

	pthread_mutex_lock(&cache->lock);
	entry = pier_cache_find(cache, request->start, request->end, request->access,
				request_backend(request));
	if (entry) {
		pier_cache_use(entry);
		cache->stats.hits++;
	}
	pthread_mutex_unlock(&cache->lock);
	return entry;
}

/* Its address belongs to another allocation now. */
static void reject_entry(struct pier_cache_entry *entry)
{
	struct pier_mr_cache *cache = entry->cache;

	pthread_mutex_lock(&cache->lock);
	cache->stats.hits--;
	if (entry->state == PIER_CACHE_KEPT) {
		pier_cache_drop(entry);
		cache->stats.invalidations++;
	}
	pier_cache_unuse(entry);
	pthread_mutex_unlock(&cache->lock);
	pier_cache_reap(cache);
}

/*
 * Whether kept regions can be trusted now. If not, memory is being unmapped at this
 * moment, and this thread may have new memory at the same address already.
 */
static bool is_trusted(struct pier_mr_cache *cache)
{
	return atomic_load(&cache->watched) == 0 || pier_watch_settled();
}

static int wrap_request(const struct request *request, struct pier_cache_entry *entry)
{
	if (request->buffer)
		return 0;
	return pier_buffer_wrap((void *)(uintptr_t)request->start,
				(size_t)(request->end - request->start), &entry->buffer);
}

static enum guard choose_guard(const struct request *request,
			       const struct pier_backend *backend)
{
	bool by_hand = request->cache->attr.flags & PIER_MR_CACHE_UNWATCHED;

	if (backend->identity)
		return GUARD_IDENTITY;
	/* The last case: the entry's own reference keeps the allocation. */
	if (request->buffer || (backend->find && backend->release))
		return GUARD_OWNED;
	if (by_hand)
		return GUARD_CALLER;
	return pier_is_host_backend(backend) && request->cache->watching ? GUARD_WATCH
									 : GUARD_NONE;
}

/* From here on a thread that frees the memory finds the entry. */
static bool begin_pending(const struct request *request, struct pier_cache_entry *entry)
{
	struct pier_mr_cache *cache = request->cache;
	bool reserved;

	pthread_mutex_lock(&cache->lock);
	reserved = pier_cache_reserve(cache, pier_cache_length(entry));
	if (reserved) {
		entry->state = PIER_CACHE_PENDING;
		pier_list_append(&cache->pending, &entry->link);
	}
	pthread_mutex_unlock(&cache->lock);
	pier_cache_reap(cache);
	return reserved;
}

static void count_unwatched(struct pier_mr_cache *cache)
{
	pthread_mutex_lock(&cache->lock);
	cache->stats.unwatched++;
	pthread_mutex_unlock(&cache->lock);
}

/* With the lock held: the entry is no longer pending, and is not kept. */
static void end_pending(struct pier_cache_entry *entry)
{
	pier_list_remove(&entry->link);
	if (entry->state == PIER_CACHE_PENDING)
		pier_cache_unreserve(entry->cache, pier_cache_length(entry));
	entry->state = PIER_CACHE_LOOSE;
}

static void give_up_pending(struct pier_cache_entry *entry)
{
	pthread_mutex_lock(&entry->cache->lock);
	end_pending(entry);
	pthread_mutex_unlock(&entry->cache->lock);
}

/*
 * Set the guard before the memory is registered, so that every later change is
 * noticed.
 */
static bool set_guard(const struct request *request, struct pier_cache_entry *entry,
		      const struct pier_backend *backend, enum guard guard)
{
	const struct pier_buffer *buffer = request->buffer ? request->buffer
							   : entry->buffer;

	if (guard == GUARD_IDENTITY)
		return pier_cache_identify(entry, backend, &buffer->memory);
	if (guard == GUARD_WATCH)
		pier_watch_arm(&entry->watched, entry->node.start, entry->node.end);
	return guard != GUARD_WATCH || entry->watched.armed;
}

static void prepare_to_keep(const struct request *request, struct pier_cache_entry *entry,
			    const struct pier_backend *backend)
{
	enum guard guard = choose_guard(request, backend);

	if (guard == GUARD_NONE) {
		count_unwatched(request->cache);
		return;
	}
	/* Events of earlier memory at this address must not be taken for this one's. */
	if (guard == GUARD_WATCH)
		pier_watch_settled();
	if (!begin_pending(request, entry) || set_guard(request, entry, backend, guard))
		return;
	give_up_pending(entry);
	count_unwatched(request->cache);
}

static int register_once(const struct request *request, struct pier_cache_entry *entry)
{
	struct pier_mr_cache *cache = request->cache;
	struct pier_buffer *buffer = request->buffer ? request->buffer : entry->buffer;

	return pier_reg_buffer_mr(cache->pd, buffer, request->offset,
				  (size_t)(request->end - request->start),
				  request->access, cache->attr.policy, &entry->mr);
}

/* If memory runs out, drop the idle regions and try again. */
static int register_entry(const struct request *request, struct pier_cache_entry *entry)
{
	struct pier_mr_cache *cache = request->cache;
	bool some;
	int error = register_once(request, entry);

	if (error == -ENOMEM) {
		pthread_mutex_lock(&cache->lock);
		some = cache->idle_count > 0;
		cache->stats.evictions += cache->idle_count;
		pier_cache_drop_idle(cache);
		pthread_mutex_unlock(&cache->lock);
		pier_cache_reap(cache);
		if (some)
			error = register_once(request, entry);
	}
	if (!error)
		entry->mr->cached = entry;
	return error;
}

/* A region that another thread registered meanwhile, but not one of older memory. */
static struct pier_cache_entry *find_twin(const struct request *request,
					  const struct pier_cache_entry *entry)
{
	struct pier_cache_entry *twin;

	twin = pier_cache_find(request->cache, request->start, request->end,
			       request->access, request_backend(request));
	if (!twin)
		return NULL;
	if (pier_cache_has_memory_of(twin, entry))
		return twin;
	pier_cache_drop(twin);
	request->cache->stats.invalidations++;
	return NULL;
}

/* With the lock held: hand out the entry, or its twin. */
static struct pier_cache_entry *choose_entry(const struct request *request,
					     struct pier_cache_entry *entry,
					     const struct pier_backend *backend)
{
	struct pier_mr_cache *cache = request->cache;
	struct pier_cache_entry *twin = NULL;

	cache->stats.misses++;
	if (entry->state == PIER_CACHE_PENDING)
		twin = find_twin(request, entry);
	if (twin) {
		end_pending(entry);
		pier_cache_use(entry);
		pier_cache_unuse(entry);
		pier_cache_use(twin);
		return twin;
	}
	pier_cache_use(entry);
	if (entry->state != PIER_CACHE_PENDING ||
	    !pier_cache_keep(entry, backend, request->access)) {
		end_pending(entry);
		cache->stats.uncached++;
	}
	return entry;
}

static int fail_miss(struct pier_cache_entry *entry, int error)
{
	give_up_pending(entry);
	pier_cache_free_entry(entry);
	return error;
}

static struct pier_cache_entry *new_entry(const struct request *request)
{
	struct pier_cache_entry *entry = calloc(1, sizeof(*entry));

	if (!entry)
		return NULL;
	entry->cache = request->cache;
	entry->node.start = request->start;
	entry->node.end = request->end;
	entry->state = PIER_CACHE_LOOSE;
	pier_list_init(&entry->link);
	return entry;
}

static int serve_by_registering(const struct request *request, bool keep,
				struct pier_mr **ret_mr)
{
	PIER_ENTRY_FROM(request->caller);
	struct pier_cache_entry *entry = new_entry(request), *chosen;
	const struct pier_backend *backend;
	int error;

	if (!entry)
		return pier_fail(ENOMEM,
				 "no memory for an entry of a registration cache");
	error = wrap_request(request, entry);
	if (error)
		return fail_miss(entry, error);
	backend = request->buffer ? request->buffer->backend : entry->buffer->backend;
	if (keep)
		prepare_to_keep(request, entry, backend);
	error = register_entry(request, entry);
	if (error)
		return fail_miss(entry, error);
	pthread_mutex_lock(&request->cache->lock);
	chosen = choose_entry(request, entry, backend);
	pthread_mutex_unlock(&request->cache->lock);
	*ret_mr = chosen->mr;
	pier_cache_reap(request->cache);
	return 0;
}

static int serve_request(const struct request *request, struct pier_mr **ret_mr)
{
	struct pier_cache_entry *entry;
	int error = pier_check_process(&request->cache->object);

	if (error)
		return error;
	if (!is_trusted(request->cache))
		return serve_by_registering(request, false, ret_mr);
	while ((entry = take_kept(request))) {
		if (pier_cache_is_current(entry)) {
			*ret_mr = entry->mr;
			return 0;
		}
		reject_entry(entry);
	}
	return serve_by_registering(request, true, ret_mr);
}

int pier_mr_cache_get(struct pier_mr_cache *cache, void *addr, size_t length, int access,
		      struct pier_mr **ret_mr)
{
	struct request request = {
		.cache = cache,
		.start = (uintptr_t)addr,
		.access = access,
		.caller = __builtin_return_address(0),
	};

	if (!addr || length == 0 || !pier_add_u64(request.start, length, &request.end))
		return pier_fail(
			EINVAL,
			"a region of a cache: %zu bytes at %p: NULL, length 0 or "
			"past the end of the addresses",
			length, addr);
	return serve_request(&request, ret_mr);
}

int pier_mr_cache_get_buffer(struct pier_mr_cache *cache, struct pier_buffer *buffer,
			     size_t offset, size_t length, int access,
			     struct pier_mr **ret_mr)
{
	struct request request = {
		.cache = cache,
		.buffer = buffer,
		.offset = offset,
		.access = access,
		.caller = __builtin_return_address(0),
	};
	int error = pier_check_given(buffer, "buffer");

	if (error)
		return error;
	if (length == 0)
		return pier_fail(EINVAL, "length 0: a region has at least one byte");
	request.start = buffer->address + offset;
	request.end = request.start + length;
	error = pier_check_buffer_range(buffer, offset, length, "a region of a cache");
	return error ? error : serve_request(&request, ret_mr);
}
