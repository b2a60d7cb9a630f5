/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "buffer/buffer.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/log.h"
#include "index.h"
#include "region/mr.h"

static void cache_forget_identity(struct pier_cache_entry *entry)
{
	free(entry->segments);
	entry->segments = NULL;
	entry->segment_count = 0;
}

/* Release everything that an entry has besides its region. */
static void release_entry(struct pier_cache_entry *entry)
{
	pier_watch_disarm(&entry->watched);
	cache_forget_identity(entry);
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
	error = pier_mr_dereg(mr);
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
		entry = pier_cache_entry_in(pier_list_take(&cache->dead));
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
	pier_list_for_each(const struct pier_cache_entry, entry, &cache->reaping, link) {
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
	return pier_fail(EBUSY,
			 "another thread has been deregistering a region of a "
			 "registration cache for %d s",
			 PIER_CACHE_REAP_SECONDS);
}

/*
 * No range of a set encloses another. So ranges that start later end later, and among
 * those that start at or before an address, the last reaches farthest: if that one does
 * not serve a request, none in the set does.
 */

static bool serves_access(int has, int wanted)
{
	return (wanted & ~has & PIER_CACHE_RIGHTS) == 0 &&
	       ((has ^ wanted) & ~PIER_CACHE_RIGHTS) == 0;
}

static bool has_addresses_of(const struct pier_cache_set *set,
			     const struct pier_cache_key *key)
{
	return key->backend || key->file.inode ? set->backend == key->backend
					       : set->by_pointer;
}

static bool is_of_file(const struct pier_cache_entry *entry,
		       const struct pier_cache_file *file)
{
	return entry->file.inode == file->inode && entry->file.device == file->device;
}

struct pier_cache_entry *pier_cache_find(struct pier_mr_cache *cache,
					 const struct pier_cache_key *key)
{
	for (unsigned int i = 0; i < cache->set_count; i++) {
		const struct pier_cache_set *set = &cache->sets[i];
		struct pier_tree_node *node;

		if (!serves_access(set->access, key->access) ||
		    !has_addresses_of(set, key))
			continue;
		node = pier_tree_floor(&set->tree, key->start);
		if (node && node->end >= key->end &&
		    (set->backend || is_of_file(pier_cache_entry_of(node), &key->file)))
			return pier_cache_entry_of(node);
	}
	return NULL;
}

static struct pier_cache_set *find_set(struct pier_mr_cache *cache,
				       const struct pier_backend *backend,
				       uint32_t access)
{
	struct pier_cache_set *set;

	for (unsigned int i = 0; i < cache->set_count; i++)
		if (cache->sets[i].backend == backend && cache->sets[i].access == access)
			return &cache->sets[i];
	if (cache->set_count == PIER_CACHE_SETS)
		return NULL;
	set = &cache->sets[cache->set_count++];
	*set = (struct pier_cache_set){
		.backend = backend,
		.access = access,
		.by_pointer = backend && (backend->find || backend == &pier_host_backend),
	};
	return set;
}

static void leave_idle(struct pier_cache_entry *entry)
{
	struct pier_mr_cache *cache = entry->cache;

	pier_list_remove(&entry->link);
	cache->idle_count--;
	cache->idle_bytes -= pier_cache_length(entry);
}

static void become_dead(struct pier_cache_entry *entry)
{
	entry->state = PIER_CACHE_DEAD;
	pier_list_append(&entry->cache->dead, &entry->link);
}

void pier_cache_use(struct pier_cache_entry *entry)
{
	if (entry->users++ > 0)
		return;
	entry->cache->stats.in_use++;
	if (entry->state == PIER_CACHE_KEPT)
		leave_idle(entry);
}

void pier_cache_unuse(struct pier_cache_entry *entry)
{
	struct pier_mr_cache *cache = entry->cache;

	assert(entry->users > 0);
	if (--entry->users > 0)
		return;
	cache->stats.in_use--;
	if (entry->state != PIER_CACHE_KEPT) {
		become_dead(entry);
		return;
	}
	pier_list_append(&cache->idle, &entry->link);
	cache->idle_count++;
	cache->idle_bytes += pier_cache_length(entry);
}

void pier_cache_unreserve(struct pier_mr_cache *cache, uint64_t length)
{
	cache->stats.count--;
	cache->stats.bytes -= length;
}

void pier_cache_drop(struct pier_cache_entry *entry)
{
	struct pier_mr_cache *cache = entry->cache;

	assert(entry->state == PIER_CACHE_KEPT);
	pier_tree_remove(&entry->set->tree, &entry->node);
	pier_cache_unreserve(cache, pier_cache_length(entry));
	if (entry->watched.armed)
		atomic_fetch_sub(&cache->watched, 1);
	entry->state = PIER_CACHE_LOOSE;
	if (entry->users > 0)
		return;
	leave_idle(entry);
	become_dead(entry);
}

bool pier_cache_reserve(struct pier_mr_cache *cache, uint64_t length)
{
	const struct pier_mr_cache_attr *attr = &cache->attr;
	struct pier_mr_cache_stats *stats = &cache->stats;

	if (stats->count - cache->idle_count >= attr->max_count ||
	    length > attr->max_bytes ||
	    stats->bytes - cache->idle_bytes > attr->max_bytes - length)
		return false;
	while (stats->count >= attr->max_count ||
	       stats->bytes > attr->max_bytes - length) {
		pier_cache_drop(pier_cache_entry_in(cache->idle.next));
		stats->evictions++;
	}
	stats->count++;
	stats->bytes += length;
	return true;
}

bool pier_cache_keep(struct pier_cache_entry *entry, const struct pier_backend *backend,
		     uint32_t access)
{
	struct pier_mr_cache *cache = entry->cache;
	struct pier_cache_set *set = find_set(cache, backend, access);
	struct pier_tree_node *node;

	if (!set)
		return false;
	/* The enclosed ranges are consecutive, from its start as long as they end inside.
	 */
	while ((node = pier_tree_from(&set->tree, entry->node.start)) &&
	       node->end <= entry->node.end)
		pier_cache_drop(pier_cache_entry_of(node));
	pier_list_remove(&entry->link);
	entry->set = set;
	entry->state = PIER_CACHE_KEPT;
	pier_tree_insert(&set->tree, &entry->node);
	if (entry->watched.armed)
		atomic_fetch_add(&cache->watched, 1);
	return true;
}

void pier_cache_drop_range(struct pier_mr_cache *cache, uint64_t start, uint64_t end,
			   bool dmabufs)
{
	for (unsigned int i = 0; i < cache->set_count; i++) {
		struct pier_tree *tree = &cache->sets[i].tree;
		struct pier_tree_node *node;

		if (!cache->sets[i].backend != dmabufs)
			continue;
		while ((node = pier_tree_overlap(tree, start, end))) {
			pier_cache_drop(pier_cache_entry_of(node));
			cache->stats.invalidations++;
		}
	}
	pier_list_for_each(struct pier_cache_entry, entry, &cache->pending, link) {
		if (entry->state == PIER_CACHE_PENDING && entry->node.start < end &&
		    entry->node.end > start && (entry->file.inode != 0) == dmabufs) {
			entry->state = PIER_CACHE_LOOSE;
			pier_cache_unreserve(cache, pier_cache_length(entry));
			cache->stats.invalidations++;
		}
	}
}

void pier_cache_drop_idle(struct pier_mr_cache *cache)
{
	while (!pier_list_empty(&cache->idle))
		pier_cache_drop(pier_cache_entry_in(cache->idle.next));
	while (!pier_list_empty(&cache->stuck))
		pier_list_append(&cache->dead, pier_list_take(&cache->stuck));
}

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

void pier_caches_add(struct pier_mr_cache *cache)
{
	pthread_mutex_lock(&all.lock);
	cache->serial = ++all.serial;
	pier_list_append(&all.caches, &cache->link);
	atomic_fetch_add(&all.count, 1);
	pthread_mutex_unlock(&all.lock);
}

int pier_caches_remove(struct pier_mr_cache *cache)
{
	int64_t deadline = pier_deadline(PIER_CACHE_REAP_SECONDS * 1000);
	int error = 0;
	bool settled;

	pthread_mutex_lock(&all.lock);
	pier_list_remove(&cache->link);
	atomic_fetch_sub(&all.count, 1);
	pthread_mutex_unlock(&all.lock);
	pthread_mutex_lock(&cache->lock);
	while ((cache->visitors > 0 || !pier_list_empty(&cache->reaping)) && !error)
		error = pier_clock_wait(&cache->settled, &cache->lock, deadline);
	settled = cache->visitors == 0 && pier_list_empty(&cache->reaping);
	pthread_mutex_unlock(&cache->lock);
	if (settled)
		return 0;
	pier_caches_add(cache);
	return pier_fail(EBUSY,
			 "destroying a registration cache: another thread has "
			 "been deregistering one of its regions for %d s",
			 PIER_CACHE_REAP_SECONDS);
}

/* Leaves dead entries to reap_caches(). Neither allocates nor frees. */
static bool drop_unmapped(uint64_t start, uint64_t end)
{
	bool left = false;

	pthread_mutex_lock(&all.lock);
	pier_list_for_each(struct pier_mr_cache, cache, &all.caches, link) {
		pthread_mutex_lock(&cache->lock);
		pier_cache_drop_range(cache, start, end, false);
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
	pier_list_for_each(struct pier_mr_cache, cache, &all.caches, link) {
		if (cache->serial <= serial)
			continue;
		found = cache;
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

/* With the lock of the cache. No two ranges of a set have the same start. */
static void drop_key(struct pier_mr_cache *cache, uint32_t lkey)
{
	for (unsigned int i = 0; i < cache->set_count; i++) {
		struct pier_tree_node *node = pier_tree_from(&cache->sets[i].tree, 0);

		while (node) {
			uint64_t start = node->start;

			if (pier_cache_entry_of(node)->mr->lkey == lkey) {
				pier_cache_drop(pier_cache_entry_of(node));
				cache->stats.invalidations++;
			}
			node = start < UINT64_MAX
				       ? pier_tree_from(&cache->sets[i].tree, start + 1)
				       : NULL;
		}
	}
}

void pier_caches_drop_key(const struct pier_pd *pd, uint32_t lkey)
{
	pthread_mutex_lock(&all.lock);
	pier_list_for_each(struct pier_mr_cache, cache, &all.caches, link) {
		if (cache->pd != pd)
			continue;
		pthread_mutex_lock(&cache->lock);
		drop_key(cache, lkey);
		pthread_mutex_unlock(&cache->lock);
	}
	pthread_mutex_unlock(&all.lock);
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

/* The memory of a buffer that is freed, or, if it is wrapped, the part of the buffer. */
struct freed_memory {
	const struct pier_buffer *buffer;
	uint64_t start, end;
};

static struct freed_memory memory_freed_with(const struct pier_buffer *buffer)
{
	if (buffer->wrapped)
		return (struct freed_memory){ buffer, buffer->address,
					      buffer->address + buffer->length };
	return (struct freed_memory){ buffer, buffer->memory.address,
				      buffer->memory.address + buffer->memory.length };
}

/*
 * Whether the memory can end with a wrapped buffer: each buffer that wraps it keeps it
 * (find() and release()), and so would the kept regions.
 */
static bool is_shared_by_wrapping(const struct pier_backend *backend)
{
	return backend->find && backend->release && !backend->identity;
}

/*
 * With the lock held. Returns true if a region that needs the buffer is handed out, which
 * is left alone. A region of other memory needs its own buffer only, also where a wrapped
 * buffer has the same addresses: it is dropped so that it does not keep the memory, and
 * otherwise stays.
 */
static bool drop_from_set(struct pier_cache_set *set, const struct freed_memory *freed)
{
	const struct pier_buffer *buffer = freed->buffer;
	struct pier_tree_node *node;
	uint64_t start = freed->start;
	bool busy = false;

	while ((node = pier_tree_overlap(&set->tree, start, freed->end))) {
		struct pier_cache_entry *entry = pier_cache_entry_of(node);
		bool needed = !buffer->wrapped || entry->owner == buffer;

		if (needed ? entry->users > 0 : !is_shared_by_wrapping(buffer->backend)) {
			busy = busy || needed;
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
		if (cache->sets[i].backend == freed->buffer->backend)
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
	pier_buffer_set_hooks(release_buffer, drop_revoked);
}

/*
 * The end of the segment around `address`; 0: the backend knows none. Without segment()
 * there is only one.
 */
static uint64_t find_end(const struct pier_backend *backend,
			 const struct pier_memory *memory, uint64_t address, uint64_t end)
{
	uint64_t start = 0, length = 0;

	if (!backend->segment)
		return end;
	if (backend->segment(memory, address, &start, &length) != 0 || address < start ||
	    address - start >= length)
		return 0;
	return end - start <= length ? end : start + length;
}

/* The capacity is a power of two. */
static bool add_segment(struct pier_cache_entry *entry, uint64_t start, uint64_t identity)
{
	uint32_t count = entry->segment_count;
	struct pier_cache_segment *grown = entry->segments;

	if ((count & (count - 1)) == 0) {
		grown = realloc(grown, (count ? 2 * count : 1) * sizeof(*grown));
		if (!grown)
			return false;
		entry->segments = grown;
	}
	grown[count] = (struct pier_cache_segment){ start, identity };
	entry->segment_count++;
	return true;
}

bool pier_cache_identify(struct pier_cache_entry *entry,
			 const struct pier_backend *backend,
			 const struct pier_memory *memory)
{
	uint64_t at = entry->node.start;

	while (at < entry->node.end) {
		uint64_t identity, end = find_end(backend, memory, at, entry->node.end);

		if (end == 0 || entry->segment_count == PIER_CACHE_SEGMENTS ||
		    backend->identity(at, &identity) != 0 ||
		    !add_segment(entry, at, identity)) {
			cache_forget_identity(entry);
			return false;
		}
		at = end;
	}
	return true;
}

bool pier_cache_is_current(const struct pier_cache_entry *entry)
{
	for (uint32_t i = 0; i < entry->segment_count; i++) {
		const struct pier_cache_segment *segment = &entry->segments[i];
		uint64_t identity;

		if (entry->set->backend->identity(segment->start, &identity) != 0 ||
		    identity != segment->identity)
			return false;
	}
	return true;
}

/* Both are sorted, and the kept entry's first segment starts no later. */
bool pier_cache_has_memory_of(const struct pier_cache_entry *kept,
			      const struct pier_cache_entry *entry)
{
	const struct pier_cache_segment *has = kept->segments;
	uint32_t left = kept->segment_count;

	if (left == 0 || entry->segment_count == 0)
		return left == entry->segment_count;
	for (uint32_t i = 0; i < entry->segment_count; i++) {
		const struct pier_cache_segment *wanted = &entry->segments[i];

		for (; left > 1 && has[1].start <= wanted->start; left--)
			has++;
		if (has->identity != wanted->identity)
			return false;
	}
	return true;
}
