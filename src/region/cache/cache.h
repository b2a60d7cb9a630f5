/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_CACHE_CACHE_H
#define PIER_REGION_CACHE_CACHE_H

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include <pier/cache.h>

#include "core/list.h"
#include "core/object.h"
#include "tree.h"
#include "watch.h"

/*
 * Inside the registration cache. Locks, in the order in which they are taken:
 *
 *	the list of all caches (index.c)
 *	the lock of a cache
 *	the ranges that are watched (watch.c)
 *
 * The kernel blocks a thread that unmaps watched memory until the listener of watch.c
 * has read the event, and the listener takes the first two locks. Code that holds any of
 * them must therefore not allocate, free, log, or call pier_fail(), a device or a
 * backend: each of these may unmap watched memory and so deadlock with the listener.
 */

enum {
	/* One per combination of access and backend; further ones are not cached. */
	PIER_CACHE_SETS = 64,
	/* Of one region, each with a number of its own; a region of more is not kept. */
	PIER_CACHE_SEGMENTS = 4096,
	/* How long to wait for another thread that deregisters. */
	PIER_CACHE_REAP_SECONDS = 30,
	/* A region serves a request for fewer of these; all other flags must be equal. */
	PIER_CACHE_RIGHTS = PIER_ACCESS_LOCAL_WRITE | PIER_ACCESS_REMOTE_WRITE |
			    PIER_ACCESS_REMOTE_READ | PIER_ACCESS_REMOTE_ATOMIC |
			    PIER_ACCESS_MW_BIND,
};

/* Kept regions of equal access and backend. None encloses another. */
struct pier_cache_set {
	struct pier_tree tree;
	const struct pier_backend *backend;
	int access;
	bool by_pointer; /* its addresses are pointers that the backend recognises */
};

enum pier_cache_state {
	PIER_CACHE_PENDING, /* in `pending`: being registered */
	PIER_CACHE_KEPT,    /* in the tree of its set; in `idle` if it has no users */
	PIER_CACHE_LOOSE,   /* handed out, and serves no further request */
	PIER_CACHE_DEAD,    /* in `dead`, `reaping` or `stuck` */
};

/* A segment that the range of an entry touches. */
struct pier_cache_segment {
	uint64_t start; /* its first address in the range */
	uint64_t identity;
};

struct pier_mr_cache {
	struct pier_object object;
	/* Constant. */
	struct pier_pd *pd;
	struct pier_mr_cache_attr attr;
	bool watching;

	/* Under the lock of the list of all caches. */
	struct pier_list link;
	uint64_t serial; /* grows from cache to cache */

	atomic_size_t
		watched; /* number of watched kept regions; changed under the lock */

	pthread_mutex_t lock; /* guards everything below */
	struct pier_cache_set sets[PIER_CACHE_SETS];
	unsigned int set_count;
	struct pier_list idle;	  /* kept and not in use, oldest first */
	struct pier_list pending; /* being registered */
	struct pier_list dead;	  /* to be deregistered by the next thread that can */
	struct pier_list reaping; /* being deregistered */
	struct pier_list stuck;	  /* could not be */
	size_t idle_count;
	uint64_t idle_bytes;
	unsigned int visitors;	/* threads that reached it through the list of caches */
	pthread_cond_t settled; /* `reaping` or `visitors` has shrunk */
	struct pier_mr_cache_stats stats;
};

struct pier_cache_entry {
	struct pier_tree_node node; /* first: what lookups read */
	struct pier_list link;
	struct pier_mr *mr;
	struct pier_cache_set *set; /* while it is kept */
	unsigned int users;
	enum pier_cache_state state;
	/* The backend's numbers for the memory, from low to high; none: not asked. */
	struct pier_cache_segment *segments;
	uint32_t segment_count;
	struct pier_mr_cache *cache;
	struct pier_buffer *buffer; /* wrapped for this entry, or NULL */
	struct pier_watched watched;
};

static inline struct pier_cache_entry *pier_cache_entry_of(struct pier_tree_node *node)
{
	return pier_container_of(node, struct pier_cache_entry, node);
}

static inline struct pier_cache_entry *pier_cache_entry_in(struct pier_list *link)
{
	return pier_container_of(link, struct pier_cache_entry, link);
}

static inline uint64_t pier_cache_length(const struct pier_cache_entry *entry)
{
	return entry->node.end - entry->node.start;
}

#endif
