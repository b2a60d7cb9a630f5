/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_CACHE_CACHE_H
#define PIER_REGION_CACHE_CACHE_H

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include <pier/cache.h>

#include "tree.h"
#include "watch.h"
#include "core/list.h"
#include "core/object.h"

/*
 * Inside the registration cache. Locks, each of which may be taken below those
 * before it:
 *
 *	the list of all caches (list.c)
 *	the lock of a cache
 *	the ranges that are watched (cache_watch.c)
 *
 * The thread that hears of unmapped memory takes the first two before whoever
 * unmaps can go on. So below any of them nobody may free or allocate memory, log,
 * call pier_fail(), a device, or a backend: each of these can come to unmap
 * watched memory, and would wait for that thread, which waits for the lock.
 */

enum {
	/* Of different access or backend; what would need more is not cached. */
	PIER_CACHE_SETS = 64,
	/* For another thread's deregistration, in seconds. */
	PIER_CACHE_PATIENCE = 30,
	/* What must be equal to be served; all other flags are not rights. */
	PIER_CACHE_RIGHTS = PIER_ACCESS_LOCAL_WRITE | PIER_ACCESS_REMOTE_WRITE |
			    PIER_ACCESS_REMOTE_READ | PIER_ACCESS_REMOTE_ATOMIC |
			    PIER_ACCESS_MW_BIND,
};

/* Kept regions of equal access and backend, of which none encloses another. */
struct pier_cache_set {
	struct pier_tree tree;
	const struct pier_backend *backend;
	int access;
	bool by_pointer; /* its addresses are pointers that the backend knows */
};

enum pier_cache_state {
	PIER_CACHE_PENDING, /* in `pending`: being registered */
	PIER_CACHE_KEPT,    /* in the tree of its set; in `idle` if nobody uses it */
	PIER_CACHE_LOOSE,   /* handed out, and not for anybody else */
	PIER_CACHE_DEAD,    /* in `dead`, `dying` or `stuck` */
};

struct pier_cache_entry {
	struct pier_tree_node node; /* first: what lookups read */
	struct pier_list link;
	struct pier_mr *mr;
	struct pier_cache_set *set; /* of what is kept */
	unsigned int users;
	enum pier_cache_state state;
	bool identified; /* the backend tells its allocations apart */
	uint64_t identity;
	struct pier_mr_cache *cache;
	struct pier_buffer *buffer; /* wrapped for it alone, or NULL */
	struct pier_watched watched;
};

struct pier_mr_cache {
	struct pier_object object;
	/* Constant. */
	struct pier_pd *pd;
	struct pier_mr_cache_attr attr;
	bool watching;

	/* Under the lock of the list of all caches. */
	struct pier_list link;
	uint64_t serial; /* later ones have larger ones */

	atomic_size_t watched; /* kept regions that are; changed under the lock */

	pthread_mutex_t lock; /* of all below */
	struct pier_cache_set sets[PIER_CACHE_SETS];
	unsigned int set_count;
	struct pier_list idle;	  /* kept and not in use, oldest first */
	struct pier_list pending; /* being registered */
	struct pier_list dead;	  /* to be deregistered by whoever comes along */
	struct pier_list dying;	  /* being deregistered */
	struct pier_list stuck;	  /* could not be */
	size_t idle_count;
	uint64_t idle_bytes;
	unsigned int guests;	/* threads that came by the list of all caches */
	pthread_cond_t settled; /* one less in `dying` or of `guests` */
	struct pier_mr_cache_stats stats;
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

/* The index (index.c). All with the cache's lock held. */

/*
 * A kept region that serves a request, or NULL.
 *
 * backend  whose addresses these are; NULL: a pointer
 */
struct pier_cache_entry *pier_cache_find(struct pier_mr_cache *cache, uint64_t start,
					 uint64_t end, int access,
					 const struct pier_backend *backend);

/*
 * Make room for a region and count it: false, and nothing done, if all that
 * could go is in use.
 */
bool pier_cache_reserve(struct pier_mr_cache *cache, uint64_t length);
/* Undo that, for a region that is not kept in the end. */
void pier_cache_unreserve(struct pier_mr_cache *cache, uint64_t length);

/*
 * Keep an entry that room was made for and that is in use. Kept ones that it
 * encloses go. False, and not kept, when there are too many sets.
 */
bool pier_cache_keep(struct pier_cache_entry *entry, const struct pier_backend *backend,
		     int access);

/* Hand out an entry once more, and take it back. */
void pier_cache_use(struct pier_cache_entry *entry);
void pier_cache_unuse(struct pier_cache_entry *entry);

/* A kept entry is no longer: dead if nobody uses it, or loose. */
void pier_cache_drop(struct pier_cache_entry *entry);

/* The same for all that overlap, those that are being registered included. */
void pier_cache_drop_range(struct pier_mr_cache *cache, uint64_t start, uint64_t end);

/* All that nobody uses, and what was stuck before. */
void pier_cache_drop_idle(struct pier_mr_cache *cache);

/* The dead (dead.c). All without any lock. */

/* When to stop waiting for another thread's deregistration: CLOCK_MONOTONIC. */
struct timespec pier_cache_deadline(void);

/* Deregister them; the first error. What fails is stuck. */
int pier_cache_bury(struct pier_mr_cache *cache);
/*
 * The same, and wait for other threads who bury what overlaps the range.
 *
 * Errors: those of pier_dereg_mr(); -ETIMEDOUT.
 */
int pier_cache_bury_range(struct pier_mr_cache *cache, uint64_t start, uint64_t end);
/* An entry that has no region, and is in no list. */
void pier_cache_free_entry(struct pier_cache_entry *entry);

/* All caches of the process (list.c). */

/* Before the first cache: hear of unmapped memory, freed buffers and forks. */
void pier_caches_init(void);

void pier_caches_add(struct pier_mr_cache *cache);
/* And wait for other threads who are at work in it: 0, or -ETIMEDOUT and still there. */
int pier_caches_remove(struct pier_mr_cache *cache);

#endif
