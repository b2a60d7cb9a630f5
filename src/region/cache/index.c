/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>

#include "buffer/buffer.h"
#include "index.h"

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
			     const struct pier_backend *backend)
{
	return backend ? set->backend == backend : set->by_pointer;
}

struct pier_cache_entry *pier_cache_find(struct pier_mr_cache *cache, uint64_t start,
					 uint64_t end, int access,
					 const struct pier_backend *backend)
{
	for (unsigned int i = 0; i < cache->set_count; i++) {
		const struct pier_cache_set *set = &cache->sets[i];
		struct pier_tree_node *node;

		if (!serves_access(set->access, access) ||
		    !has_addresses_of(set, backend))
			continue;
		node = pier_tree_floor(&set->tree, start);
		if (node && node->end >= end)
			return pier_cache_entry_of(node);
	}
	return NULL;
}

static struct pier_cache_set *find_set(struct pier_mr_cache *cache,
				       const struct pier_backend *backend, int access)
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
		.by_pointer = backend->find || pier_is_host_backend(backend),
	};
	return set;
}

static void become_idle(struct pier_cache_entry *entry)
{
	struct pier_mr_cache *cache = entry->cache;

	pier_list_append(&cache->idle, &entry->link);
	cache->idle_count++;
	cache->idle_bytes += pier_cache_length(entry);
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
	assert(entry->users > 0);
	if (--entry->users > 0)
		return;
	entry->cache->stats.in_use--;
	if (entry->state == PIER_CACHE_KEPT)
		become_idle(entry);
	else
		become_dead(entry);
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
		     int access)
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

void pier_cache_drop_range(struct pier_mr_cache *cache, uint64_t start, uint64_t end)
{
	for (unsigned int i = 0; i < cache->set_count; i++) {
		struct pier_tree *tree = &cache->sets[i].tree;
		struct pier_tree_node *node;

		while ((node = pier_tree_overlap(tree, start, end))) {
			pier_cache_drop(pier_cache_entry_of(node));
			cache->stats.invalidations++;
		}
	}
	pier_list_for_each(link, &cache->pending) {
		struct pier_cache_entry *entry = pier_cache_entry_in(link);

		if (entry->state == PIER_CACHE_PENDING && entry->node.start < end &&
		    entry->node.end > start) {
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
	for (struct pier_list *from = &cache->stuck; !pier_list_empty(from);) {
		struct pier_list *link = from->next;

		pier_list_remove(link);
		pier_list_append(&cache->dead, link);
	}
}
