/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "cache.h"
#include "index.h"
#include "list.h"
#include "reap.h"
#include "core/caller.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/extensible.h"
#include "core/log.h"
#include "core/object.h"
#include "core/thread.h"
#include "device/device.h"
#include "region/mr.h"

enum {
	/* Of the first version. What comes behind it is not in all callers'. */
	FIRST_SIZE = offsetof(struct pier_mr_cache_attr, flags) + sizeof(uint32_t),
};

_Static_assert(sizeof(struct pier_mr_cache_attr) ==
		       offsetof(struct pier_mr_cache_attr, flags) + sizeof(uint32_t),
	       "no padding at the end, where a new field would not change the size");

static int read_attr(const struct pier_mr_cache_attr *attr,
		     struct pier_mr_cache_attr *ret_attr)
{
	struct pier_mr_cache_attr known;
	int error = 0;

	pier_mr_cache_attr_init(&known);
	if (attr)
		error = pier_read_extensible("registration cache",
					     "pier_mr_cache_attr_init()", attr,
					     FIRST_SIZE, sizeof(known), &known);
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
	*ret_attr = known;
	return 0;
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

static int fail_busy(const struct pier_mr_cache *cache, size_t in_use)
{
	return pier_fail(EBUSY,
			 "destroying a registration cache of %s: %zu of its regions are "
			 "handed out",
			 cache->pd->device->name, in_use);
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
		return fail_busy(cache, in_use);
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

int pier_mr_cache_invalidate(struct pier_mr_cache *cache, void *addr, size_t length)
{
	uint64_t start = (uintptr_t)addr, end;
	int error = pier_check_process(&cache->object);

	if (error)
		return error;
	if (!pier_add_u64(start, length, &end))
		return pier_fail(EINVAL,
				 "invalidating %zu bytes at %p: they leave the address "
				 "space",
				 length, addr);
	if (length == 0)
		return 0;
	pthread_mutex_lock(&cache->lock);
	pier_cache_drop_range(cache, start, end);
	pthread_mutex_unlock(&cache->lock);
	return pier_cache_reap_range(cache, start, end);
}

int pier_mr_cache_flush(struct pier_mr_cache *cache)
{
	int error = pier_check_process(&cache->object);

	if (error)
		return error;
	pthread_mutex_lock(&cache->lock);
	pier_cache_drop_idle(cache);
	pthread_mutex_unlock(&cache->lock);
	return pier_cache_reap_range(cache, 0, UINT64_MAX);
}

void pier_mr_cache_query_stats(struct pier_mr_cache *cache,
			       struct pier_mr_cache_stats *ret_stats)
{
	*ret_stats = (struct pier_mr_cache_stats){ 0 };
	if (pier_inherited(&cache->object))
		return;
	/* What went before this call is counted as gone. */
	if (cache->watching)
		pier_watch_settled();
	pthread_mutex_lock(&cache->lock);
	*ret_stats = cache->stats;
	ret_stats->watched = atomic_load(&cache->watched);
	pthread_mutex_unlock(&cache->lock);
}
