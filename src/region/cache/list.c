/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "list.h"
#include "index.h"
#include "reap.h"
#include "buffer/buffer.h"
#include "core/deadline.h"
#include "core/error.h"

/* A thread that unmaps memory or frees a buffer must find all caches. */
static struct {
	pthread_mutex_t lock;
	struct pier_list caches;
	atomic_uint count; /* read without the lock */
	uint64_t serial;   /* of the last one */
} all = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.caches = { &all.caches, &all.caches },
};

static struct pier_mr_cache *cache_in(struct pier_list *link)
{
	return pier_container_of(link, struct pier_mr_cache, link);
}

void pier_caches_add(struct pier_mr_cache *cache)
{
	pthread_mutex_lock(&all.lock);
	cache->serial = ++all.serial;
	pier_list_append(&all.caches, &cache->link);
	atomic_fetch_add(&all.count, 1);
	pthread_mutex_unlock(&all.lock);
}

static void unlist_cache(struct pier_mr_cache *cache)
{
	pthread_mutex_lock(&all.lock);
	pier_list_remove(&cache->link);
	atomic_fetch_sub(&all.count, 1);
	pthread_mutex_unlock(&all.lock);
}

int pier_caches_remove(struct pier_mr_cache *cache)
{
	int64_t deadline = pier_deadline(PIER_CACHE_REAP_SECONDS * 1000);
	int error = 0;
	bool settled;

	unlist_cache(cache);
	pthread_mutex_lock(&cache->lock);
	while ((cache->visitors > 0 || !pier_list_empty(&cache->reaping)) && !error)
		error = pier_clock_wait(&cache->settled, &cache->lock, deadline);
	settled = cache->visitors == 0 && pier_list_empty(&cache->reaping);
	pthread_mutex_unlock(&cache->lock);
	if (settled)
		return 0;
	pier_caches_add(cache);
	return pier_fail(ETIMEDOUT,
			 "destroying a registration cache: another thread has "
			 "been deregistering one of its regions for %d s",
			 PIER_CACHE_REAP_SECONDS);
}

/* Leaves dead entries to reap_caches(). Neither allocates nor frees. */
static bool drop_unmapped(uint64_t start, uint64_t end)
{
	bool left = false;

	pthread_mutex_lock(&all.lock);
	pier_list_for_each(link, &all.caches) {
		struct pier_mr_cache *cache = cache_in(link);

		pthread_mutex_lock(&cache->lock);
		pier_cache_drop_range(cache, start, end);
		left = left || !pier_list_empty(&cache->dead);
		pthread_mutex_unlock(&cache->lock);
	}
	pthread_mutex_unlock(&all.lock);
	return left;
}

/* The first cache with a larger serial. It cannot be destroyed until leave_cache(). */
static struct pier_mr_cache *visit_cache(uint64_t serial)
{
	struct pier_mr_cache *found = NULL;

	pthread_mutex_lock(&all.lock);
	pier_list_for_each(link, &all.caches) {
		if (cache_in(link)->serial <= serial)
			continue;
		found = cache_in(link);
		pthread_mutex_lock(&found->lock);
		found->visitors++;
		pthread_mutex_unlock(&found->lock);
		break;
	}
	pthread_mutex_unlock(&all.lock);
	return found;
}

static uint64_t leave_cache(struct pier_mr_cache *cache)
{
	uint64_t serial = cache->serial;

	pthread_mutex_lock(&cache->lock);
	cache->visitors--;
	pthread_cond_broadcast(&cache->settled);
	pthread_mutex_unlock(&cache->lock);
	return serial;
}

static void reap_caches(void)
{
	struct pier_mr_cache *cache;
	uint64_t serial = 0;

	while ((cache = visit_cache(serial))) {
		pier_cache_reap(cache);
		serial = leave_cache(cache);
	}
}

/* The backend may free the memory next, so what is idle is deregistered here. */
static void drop_revoked(uint64_t start, uint64_t end)
{
	if (drop_unmapped(start, end))
		reap_caches();
}

/* In the child of a fork: the caches are the parent's. */
static void forget_caches(void)
{
	pthread_mutex_init(&all.lock, NULL);
	pier_list_init(&all.caches);
	atomic_store(&all.count, 0);
}

/* The memory that is freed with a buffer. */
struct freed_memory {
	const struct pier_backend *backend;
	uint64_t start, end;
};

static struct freed_memory memory_freed_with(const struct pier_buffer *buffer)
{
	if (buffer->wrapped)
		return (struct freed_memory){ buffer->backend, buffer->address,
					      buffer->address + buffer->length };
	return (struct freed_memory){ buffer->backend, buffer->memory.address,
				      buffer->memory.address + buffer->memory.length };
}

/* With the lock held. Returns true if a region is handed out, which is left alone. */
static bool drop_from_set(struct pier_cache_set *set, const struct freed_memory *freed)
{
	struct pier_tree_node *node;
	uint64_t start = freed->start;
	bool busy = false;

	while ((node = pier_tree_overlap(&set->tree, start, freed->end))) {
		struct pier_cache_entry *entry = pier_cache_entry_of(node);

		if (entry->users > 0) {
			busy = true;
			/* Regions that start later end later, so none is skipped. */
			start = node->end;
			continue;
		}
		pier_cache_drop(entry);
		entry->cache->stats.invalidations++;
	}
	return busy;
}

static bool drop_freed(struct pier_mr_cache *cache, const struct freed_memory *freed)
{
	bool busy = false;

	pthread_mutex_lock(&cache->lock);
	for (unsigned int i = 0; i < cache->set_count; i++)
		if (cache->sets[i].backend == freed->backend)
			busy = drop_from_set(&cache->sets[i], freed) || busy;
	pthread_mutex_unlock(&cache->lock);
	return busy;
}

/*
 * Before a buffer is freed: deregister the idle regions of its memory.
 *
 * Errors: -EBUSY some of it is handed out.
 */
static int release_buffer(struct pier_buffer *buffer)
{
	struct freed_memory freed = memory_freed_with(buffer);
	struct pier_mr_cache *cache;
	uint64_t serial = 0;
	bool busy = false;
	int error = 0;

	if (atomic_load(&all.count) == 0)
		return 0;
	while (!error && (cache = visit_cache(serial))) {
		busy = drop_freed(cache, &freed) || busy;
		error = pier_cache_reap_range(cache, freed.start, freed.end);
		serial = leave_cache(cache);
	}
	if (error || !busy)
		return error;
	return pier_fail(EBUSY,
			 "freeing a buffer of %zu bytes of %s: a registration cache has "
			 "handed out a region of its memory",
			 buffer->length, buffer->backend->name);
}

void pier_caches_init(void)
{
	static const struct pier_watch_handler handler = {
		.unmapped = drop_unmapped,
		.reap = reap_caches,
		.forget = forget_caches,
	};

	pier_watch_init(&handler);
	pier_buffer_set_hook(release_buffer);
	pier_buffer_set_revoke_hook(drop_revoked);
}
