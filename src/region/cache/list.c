/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <time.h>

#include "buffer/buffer.h"
#include "cache.h"
#include "core/error.h"

/* What unmaps memory or frees buffers has to find the caches: all of them. */
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

static void unlist(struct pier_mr_cache *cache)
{
	pthread_mutex_lock(&all.lock);
	pier_list_remove(&cache->link);
	atomic_fetch_sub(&all.count, 1);
	pthread_mutex_unlock(&all.lock);
}

int pier_caches_remove(struct pier_mr_cache *cache)
{
	struct timespec deadline = pier_cache_deadline();
	int error = 0;
	bool settled;

	unlist(cache);
	pthread_mutex_lock(&cache->lock);
	while ((cache->guests > 0 || !pier_list_empty(&cache->dying)) && !error)
		error = pthread_cond_timedwait(&cache->settled, &cache->lock, &deadline);
	settled = cache->guests == 0 && pier_list_empty(&cache->dying);
	pthread_mutex_unlock(&cache->lock);
	if (settled)
		return 0;
	pier_caches_add(cache);
	return pier_fail(ETIMEDOUT,
			 "destroying a registration cache: another thread is "
			 "deregistering one of its regions for %d s now",
			 PIER_CACHE_PATIENCE);
}

/* Leaves what is dead to reap_caches(). Neither allocates nor frees. */
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

/* The next cache after that serial, which cannot be destroyed until it is left. */
static struct pier_mr_cache *visit(uint64_t serial)
{
	struct pier_mr_cache *found = NULL;

	pthread_mutex_lock(&all.lock);
	pier_list_for_each(link, &all.caches) {
		if (cache_in(link)->serial <= serial)
			continue;
		found = cache_in(link);
		pthread_mutex_lock(&found->lock);
		found->guests++;
		pthread_mutex_unlock(&found->lock);
		break;
	}
	pthread_mutex_unlock(&all.lock);
	return found;
}

static uint64_t leave(struct pier_mr_cache *cache)
{
	uint64_t serial = cache->serial;

	pthread_mutex_lock(&cache->lock);
	cache->guests--;
	pthread_cond_broadcast(&cache->settled);
	pthread_mutex_unlock(&cache->lock);
	return serial;
}

static void reap_caches(void)
{
	struct pier_mr_cache *cache;
	uint64_t serial = 0;

	while ((cache = visit(serial))) {
		pier_cache_bury(cache);
		serial = leave(cache);
	}
}

/* In the child of a fork: the caches are the parent's. */
static void forget_caches(void)
{
	pthread_mutex_init(&all.lock, NULL);
	pier_list_init(&all.caches);
	atomic_store(&all.count, 0);
}

/* The memory that goes with a buffer. */
struct going {
	const struct pier_backend *backend;
	uint64_t start, end;
};

static struct going going_with(const struct pier_buffer *buffer)
{
	if (buffer->wrapped)
		return (struct going){ buffer->backend, buffer->address,
				       buffer->address + buffer->length };
	return (struct going){ buffer->backend, buffer->memory.address,
			       buffer->memory.address + buffer->memory.length };
}

/* True if one of them is handed out, which stays as it is. With the lock held. */
static bool drop_from_set(struct pier_cache_set *set, const struct going *going)
{
	struct pier_tree_node *node;
	uint64_t start = going->start;
	bool busy = false;

	while ((node = pier_tree_overlap(&set->tree, start, going->end))) {
		struct pier_cache_entry *entry = pier_cache_entry_of(node);

		if (entry->users > 0) {
			busy = true;
			/* Whatever starts later ends later: none is left out. */
			start = node->end;
			continue;
		}
		pier_cache_drop(entry);
		entry->cache->stats.invalidations++;
	}
	return busy;
}

static bool drop_going(struct pier_mr_cache *cache, const struct going *going)
{
	bool busy = false;

	pthread_mutex_lock(&cache->lock);
	for (unsigned int i = 0; i < cache->set_count; i++)
		if (cache->sets[i].backend == going->backend)
			busy = drop_from_set(&cache->sets[i], going) || busy;
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
	struct going going = going_with(buffer);
	struct pier_mr_cache *cache;
	uint64_t serial = 0;
	bool busy = false;
	int error = 0;

	if (atomic_load(&all.count) == 0)
		return 0;
	while (!error && (cache = visit(serial))) {
		busy = drop_going(cache, &going) || busy;
		error = pier_cache_bury_range(cache, going.start, going.end);
		serial = leave(cache);
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
}
