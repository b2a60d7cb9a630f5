/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "buffer/buffer.h"
#include "identity.h"
#include "reap.h"
#include "region/mr.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/log.h"

/* Release everything that an entry has besides its region. */
static void release_entry(struct pier_cache_entry *entry)
{
	pier_watch_disarm(&entry->watched);
	pier_cache_forget_identity(entry);
	pier_free_buffer_alone(entry->buffer);
}

void pier_cache_free_entry(struct pier_cache_entry *entry)
{
	release_entry(entry);
	free(entry);
}

static int deregister_entry(struct pier_cache_entry *entry)
{
	struct pier_mr *mr = entry->mr;
	int error;

	mr->cached = NULL;
	error = pier_dereg_mr(mr);
	if (!error)
		return 0;
	mr->cached = entry;
	pier_warning("a region of a registration cache stays: %s", pier_error_message());
	return error;
}

static struct pier_cache_entry *begin_reaping(struct pier_mr_cache *cache)
{
	struct pier_cache_entry *entry = NULL;

	pthread_mutex_lock(&cache->lock);
	if (!pier_list_empty(&cache->dead)) {
		entry = pier_cache_entry_in(cache->dead.next);
		pier_list_remove(&entry->link);
		pier_list_append(&cache->reaping, &entry->link);
	}
	pthread_mutex_unlock(&cache->lock);
	return entry;
}

static int reap_entry(struct pier_mr_cache *cache, struct pier_cache_entry *entry)
{
	int error = deregister_entry(entry);

	if (!error)
		release_entry(entry);
	pthread_mutex_lock(&cache->lock);
	pier_list_remove(&entry->link);
	if (error)
		pier_list_append(&cache->stuck, &entry->link);
	pthread_cond_broadcast(&cache->settled);
	pthread_mutex_unlock(&cache->lock);
	if (!error)
		free(entry);
	return error;
}

int pier_cache_reap(struct pier_mr_cache *cache)
{
	struct pier_cache_entry *entry;
	int error, first = 0;

	while ((entry = begin_reaping(cache))) {
		error = reap_entry(cache, entry);
		first = first ? first : error;
	}
	return first;
}

static bool any_reaped_in(const struct pier_mr_cache *cache, uint64_t start, uint64_t end)
{
	pier_list_for_each(link, &cache->reaping) {
		struct pier_cache_entry *entry = pier_cache_entry_in(link);

		if (entry->node.start < end && entry->node.end > start)
			return true;
	}
	return false;
}

int pier_cache_reap_range(struct pier_mr_cache *cache, uint64_t start, uint64_t end)
{
	int64_t deadline = pier_deadline(PIER_CACHE_REAP_SECONDS * 1000);
	int error = pier_cache_reap(cache), late = 0;
	bool left;

	pthread_mutex_lock(&cache->lock);
	while (any_reaped_in(cache, start, end) && !late)
		late = pier_clock_wait(&cache->settled, &cache->lock, deadline);
	left = any_reaped_in(cache, start, end);
	pthread_mutex_unlock(&cache->lock);
	if (!left)
		return error;
	return pier_fail(ETIMEDOUT,
			 "another thread has been deregistering a region of a "
			 "registration cache for %d s",
			 PIER_CACHE_REAP_SECONDS);
}
