/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "buffer/buffer.h"
#include "core/caller.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/extensible.h"
#include "core/log.h"
#include "core/object.h"
#include "core/thread.h"
#include "device/device.h"
#include "index.h"
#include "region/mr.h"
#include "region/reg.h"

PIER_ASSERT_NO_PADDING(mr_cache_attr, tph_cpu);

static int read_attr(const struct pier_mr_cache_attr *attr,
		     struct pier_mr_cache_attr *ret_attr)
{
	struct pier_mr_cache_attr known;
	int error = PIER_READ_ATTR("registration cache", mr_cache_attr, attr,
				   PIER_SIZE_UP_TO(mr_cache_attr, flags), &known);

	if (error)
		return error;
	if ((unsigned int)known.policy > PIER_POLICY_BOUNCE)
		return pier_fail(EINVAL,
				 "registration cache: policy %d is not one of enum "
				 "pier_policy",
				 (int)known.policy);
	if (known.flags & ~(uint32_t)PIER_MR_CACHE_UNWATCHED)
		return pier_fail(EINVAL, "registration cache: flags %#x are not known",
				 known.flags & ~(uint32_t)PIER_MR_CACHE_UNWATCHED);
	error = pier_check_tph(known.tph, known.tph_cpu);
	if (!error)
		*ret_attr = known;
	return error;
}

static void init_lists(struct pier_mr_cache *cache)
{
	pier_list_init(&cache->link);
	pier_list_init(&cache->idle);
	pier_list_init(&cache->pending);
	pier_list_init(&cache->dead);
	pier_list_init(&cache->reaping);
	pier_list_init(&cache->stuck);
}

static void describe_cache(const struct pier_object *object, char *ret_text, size_t size)
{
	const struct pier_mr_cache *cache = (const struct pier_mr_cache *)object;

	snprintf(ret_text, size, "registration cache on %s", cache->pd->device->name);
}

static void start_watching(struct pier_mr_cache *cache)
{
	if (cache->attr.flags & PIER_MR_CACHE_UNWATCHED)
		return;
	if (pier_watch_start() == 0)
		cache->watching = true;
	else
		pier_warning("a registration cache does not keep regions of host memory "
			     "that is not pier's own: %s",
			     pier_error_message());
	cache->stats.watching = cache->watching;
}

int pier_mr_cache_create(struct pier_pd *pd, const struct pier_mr_cache_attr *attr,
			 struct pier_mr_cache **ret_cache)
{
	PIER_REFUSE_NULL(pd, ret_cache);
	PIER_ENTRY();
	struct pier_mr_cache_attr known;
	struct pier_mr_cache *cache;
	int error = pier_check_process(&pd->object);

	if (!error)
		error = read_attr(attr, &known);
	if (error)
		return error;
	pier_caches_init();
	cache = calloc(1, sizeof(*cache));
	if (!cache)
		return pier_fail(ENOMEM, "no memory for a registration cache");
	error = pier_init_cond(&cache->settled);
	if (error) {
		free(cache);
		return pier_fail(error, "no condition variable for a registration cache");
	}
	cache->pd = pd;
	cache->attr = known;
	init_lists(cache);
	pthread_mutex_init(&cache->lock, NULL);
	start_watching(cache);
	atomic_fetch_add(&pd->children, 1);
	pier_caches_add(cache);
	cache->object.describe = describe_cache;
	pier_object_track(&cache->object, PIER_OBJECT_MR_CACHE, &pd->object);
	*ret_cache = cache;
	return 0;
}

static int empty_cache(struct pier_mr_cache *cache)
{
	size_t in_use;
	int error;

	pthread_mutex_lock(&cache->lock);
	in_use = cache->stats.in_use;
	if (in_use == 0)
		pier_cache_drop_idle(cache);
	pthread_mutex_unlock(&cache->lock);
	if (in_use > 0)
		return pier_fail(EBUSY,
				 "destroying a registration cache of %s: %zu of its "
				 "regions are handed out",
				 cache->pd->device->name, in_use);
	error = pier_cache_reap(cache);
	return error ? error : pier_caches_remove(cache);
}

int pier_mr_cache_destroy(struct pier_mr_cache *cache)
{
	int error;

	if (!cache)
		return 0;
	error = pier_check_process(&cache->object);
	if (!error)
		error = empty_cache(cache);
	if (error)
		return error;
	if (cache->watching)
		pier_watch_stop();
	pier_object_untrack(&cache->object);
	atomic_fetch_sub(&cache->pd->children, 1);
	pthread_cond_destroy(&cache->settled);
	pthread_mutex_destroy(&cache->lock);
	free(cache);
	return 0;
}

int pier_mr_cache_put(struct pier_mr_cache *cache, struct pier_mr *mr)
{
	PIER_REFUSE_NULL(cache);
	struct pier_cache_entry *entry = mr ? mr->cached : NULL;
	int error = pier_check_process(&cache->object);
	bool handed_out, dead;

	if (error || !mr)
		return error;
	if (!entry || entry->cache != cache)
		return pier_fail(EINVAL,
				 "returning a region of %llu bytes to a registration "
				 "cache that did not hand it out",
				 (unsigned long long)mr->length);
	pthread_mutex_lock(&cache->lock);
	handed_out = entry->users > 0;
	if (handed_out)
		pier_cache_unuse(entry);
	dead = !pier_list_empty(&cache->dead);
	pthread_mutex_unlock(&cache->lock);
	if (!handed_out)
		return pier_fail(EINVAL,
				 "returning a region of %llu bytes to its registration "
				 "cache more often than it was handed out",
				 (unsigned long long)mr->length);
	return dead ? pier_cache_reap(cache) : 0;
}

int pier_mr_cache_flush(struct pier_mr_cache *cache)
{
	PIER_REFUSE_NULL(cache);
	int error = pier_check_process(&cache->object);

	if (error)
		return error;
	pthread_mutex_lock(&cache->lock);
	pier_cache_drop_idle(cache);
	pthread_mutex_unlock(&cache->lock);
	return pier_cache_reap_range(cache, 0, UINT64_MAX);
}

void pier_mr_cache_query_stats(struct pier_mr_cache *cache,
			       struct pier_mr_cache_stats *ret_stats, size_t size)
{
	PIER_REFUSE_NULL_AS(, cache, ret_stats);
	struct pier_mr_cache_stats stats = { 0 };

	if (!pier_inherited(&cache->object)) {
		/* Memory that was unmapped before this call counts as gone. */
		if (cache->watching)
			pier_watch_settled();
		pthread_mutex_lock(&cache->lock);
		stats = cache->stats;
		stats.watched = atomic_load(&cache->watched);
		pthread_mutex_unlock(&cache->lock);
	}
	pier_write_extensible(&stats, sizeof(stats), ret_stats, size);
}

/* A request for a region. */
struct request {
	struct pier_mr_cache *cache;
	const struct pier_mr_range *range;
	struct pier_cache_key key;
	const void *caller; /* for a miss: a hit creates nothing, and must be cheap */
};

static int find_addresses(const struct pier_mr_range *range, struct pier_cache_key *key)
{
	key->start = (uintptr_t)range->addr;
	if (pier_add_u64(key->start, range->length, &key->end))
		return 0;
	return pier_fail(EINVAL,
			 "a region of a cache: %" PRIu64 " bytes at %p: they leave the "
			 "address space",
			 range->length, range->addr);
}

static int find_buffer(const struct pier_mr_range *range, struct pier_cache_key *key)
{
	int error = pier_check_buffer_range(range->buffer, range->offset, range->length,
					    "a region of a cache");

	if (error)
		return error;
	key->backend = range->buffer->backend;
	key->start = range->buffer->address + range->offset;
	key->end = key->start + range->length;
	return 0;
}

/* 2^64 divided by the golden ratio: its multiples are far apart. Half of them fit. */
static int find_file(const struct pier_mr_range *range, struct pier_cache_key *key)
{
	struct stat file;
	uint64_t end;

	if (fstat(range->fd, &file) != 0)
		return pier_fail(errno, "a region of a cache: dma-buf fd %d: %m",
				 range->fd);
	if (!pier_add_u64(range->offset, range->length, &end) || end > INT64_MAX)
		return pier_fail(EINVAL,
				 "a region of a cache: %" PRIu64
				 " bytes at offset %" PRIu64
				 " are more than a dma-buf has",
				 range->length, range->offset);
	key->file = (struct pier_cache_file){ file.st_dev, file.st_ino };
	key->start = (file.st_ino * UINT64_C(0x9e3779b97f4a7c15) >> 1) + range->offset;
	key->end = key->start + range->length;
	return 0;
}

/* `key` is zero except for the access. */
static int fill_key(const struct pier_mr_range *range, struct pier_cache_key *key)
{
	switch (range->source) {
	case PIER_MR_HOST:
	case PIER_MR_POINTER:
		return find_addresses(range, key);
	case PIER_MR_BUFFER:
		return find_buffer(range, key);
	case PIER_MR_DMABUF:
		return find_file(range, key);
	}
	return pier_fail(EINVAL,
			 "a region of a cache: source %d is not one of enum "
			 "pier_mr_source",
			 (int)range->source);
}

/* How the cache knows that a region still has the memory that was registered. */
enum guard {
	GUARD_NONE,	/* it does not know, and keeps no region */
	GUARD_OWNED,	/* pier_buffer_free() drops it */
	GUARD_IDENTITY, /* it asks the backend at each hit */
	GUARD_WATCH,	/* the kernel reports unmapped memory */
	GUARD_CALLER,	/* pier_mr_cache_invalidate() */
};

/*
 * Hand out a kept region, or return NULL. It counts as a hit at once; reject_entry()
 * undoes that.
 */
static struct pier_cache_entry *take_kept(const struct request *request)
{
	struct pier_mr_cache *cache = request->cache;
	struct pier_cache_entry *entry;

	pthread_mutex_lock(&cache->lock);
	entry = pier_cache_find(cache, &request->key);
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

/* The buffer of the entry's memory, or NULL: a dma-buf. */
static const struct pier_buffer *buffer_of(const struct pier_cache_entry *entry)
{
	return entry->owner ? entry->owner : entry->buffer;
}

static enum guard choose_guard(const struct pier_cache_entry *entry)
{
	const struct pier_buffer *buffer = buffer_of(entry);
	const struct pier_backend *backend = buffer ? buffer->backend : NULL;
	const struct pier_mr_cache *cache = entry->cache;
	bool by_hand = cache->attr.flags & PIER_MR_CACHE_UNWATCHED;

	/* A region keeps its dma-buf. */
	if (!backend)
		return GUARD_OWNED;
	if (backend->identity)
		return GUARD_IDENTITY;
	/* The last case: the entry's own reference keeps the allocation. */
	if (entry->owner || (backend->find && backend->release))
		return GUARD_OWNED;
	if (by_hand)
		return GUARD_CALLER;
	return backend == &pier_host_backend && cache->watching ? GUARD_WATCH
								: GUARD_NONE;
}

/* From here on a thread that frees the memory finds the entry. */
static bool begin_pending(struct pier_cache_entry *entry)
{
	struct pier_mr_cache *cache = entry->cache;
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
static bool set_guard(struct pier_cache_entry *entry, enum guard guard)
{
	const struct pier_buffer *buffer = buffer_of(entry);

	if (guard == GUARD_IDENTITY)
		return pier_cache_identify(entry, buffer->backend, &buffer->memory);
	if (guard == GUARD_WATCH)
		pier_watch_arm(&entry->watched, entry->node.start, entry->node.end);
	return guard != GUARD_WATCH || entry->watched.armed;
}

static void prepare_to_keep(struct pier_cache_entry *entry)
{
	enum guard guard = choose_guard(entry);

	if (guard == GUARD_NONE) {
		count_unwatched(entry->cache);
		return;
	}
	/* Events of earlier memory at this address must not be taken for this one's. */
	if (guard == GUARD_WATCH)
		pier_watch_settled();
	if (!begin_pending(entry) || set_guard(entry, guard))
		return;
	give_up_pending(entry);
	count_unwatched(entry->cache);
}

static int register_once(const struct request *request, struct pier_cache_entry *entry)
{
	const struct pier_mr_range wrapped = pier_mr_range_buffer(entry->buffer, 0,
								  request->range->length);
	struct pier_mr_attr attr;

	pier_mr_attr_init(&attr);
	attr.ranges = entry->buffer ? &wrapped : request->range;
	attr.range_count = 1;
	attr.access = request->key.access;
	attr.policy = request->cache->attr.policy;
	attr.tph = request->cache->attr.tph;
	attr.tph_cpu = request->cache->attr.tph_cpu;
	return pier_mr_reg_attr(request->cache->pd, &attr, &entry->mr);
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

	twin = pier_cache_find(request->cache, &request->key);
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
					     struct pier_cache_entry *entry)
{
	struct pier_mr_cache *cache = request->cache;
	const struct pier_buffer *buffer = buffer_of(entry);
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
	    !pier_cache_keep(entry, buffer ? buffer->backend : NULL,
			     request->key.access)) {
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
	entry->node.start = request->key.start;
	entry->node.end = request->key.end;
	entry->file = request->key.file;
	if (request->key.backend)
		entry->owner = request->range->buffer;
	entry->state = PIER_CACHE_LOOSE;
	pier_list_init(&entry->link);
	return entry;
}

static int serve_by_registering(const struct request *request, bool keep,
				struct pier_mr **ret_mr)
{
	PIER_ENTRY_FROM(request->caller);
	struct pier_cache_entry *entry = new_entry(request), *chosen;
	int error = 0;

	if (!entry)
		return pier_fail(ENOMEM,
				 "no memory for an entry of a registration cache");
	if (!entry->owner && !entry->file.inode)
		error = pier_buffer_wrap(request->range->addr,
					 (size_t)request->range->length, &entry->buffer);
	if (error)
		return fail_miss(entry, error);
	if (keep)
		prepare_to_keep(entry);
	error = register_entry(request, entry);
	if (error)
		return fail_miss(entry, error);
	pthread_mutex_lock(&request->cache->lock);
	chosen = choose_entry(request, entry);
	pthread_mutex_unlock(&request->cache->lock);
	*ret_mr = chosen->mr;
	pier_cache_reap(request->cache);
	return 0;
}

int pier_mr_cache_get(struct pier_mr_cache *cache, const struct pier_mr_range *range,
		      uint32_t access, struct pier_mr **ret_mr)
{
	PIER_REFUSE_NULL(cache, range, ret_mr);
	struct request request = {
		.cache = cache,
		.range = range,
		.key.access = access,
		.caller = __builtin_return_address(0),
	};
	struct pier_cache_entry *entry;
	int error = pier_check_process(&cache->object);

	if (!error && range->length == 0)
		error = pier_fail(EINVAL, "length 0: a region has at least one byte");
	if (!error)
		error = fill_key(range, &request.key);
	if (error)
		return error;
	/*
	 * Not settled: memory is being unmapped at this moment, and this thread may have
	 * new memory at the same address already. A dma-buf's offsets stay what they are.
	 */
	if (atomic_load(&cache->watched) > 0 && !request.key.file.inode &&
	    !pier_watch_settled())
		return serve_by_registering(&request, false, ret_mr);
	while ((entry = take_kept(&request))) {
		if (pier_cache_is_current(entry)) {
			*ret_mr = entry->mr;
			return 0;
		}
		reject_entry(entry);
	}
	return serve_by_registering(&request, true, ret_mr);
}

int pier_mr_cache_invalidate(struct pier_mr_cache *cache,
			     const struct pier_mr_range *range)
{
	PIER_REFUSE_NULL(cache, range);
	struct pier_cache_key key = { 0 };
	int error = pier_check_process(&cache->object);

	if (!error)
		error = fill_key(range, &key);
	if (error || range->length == 0)
		return error;
	pthread_mutex_lock(&cache->lock);
	pier_cache_drop_range(cache, key.start, key.end, key.file.inode != 0);
	pthread_mutex_unlock(&cache->lock);
	return pier_cache_reap_range(cache, key.start, key.end);
}
