/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_CACHE_INDEX_H
#define PIER_REGION_CACHE_INDEX_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include <pier/backend.h>
#include <pier/cache.h>

#include "core/list.h"
#include "core/object.h"
#include "tree.h"
#include "watch.h"

/*
 * The index of a registration cache. Locks, in the order in which they are taken:
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
	const struct pier_backend *backend; /* NULL: dma-bufs, whose keys are offsets */
	uint32_t access;
	bool by_pointer; /* its addresses are pointers that the backend recognises */
};

/*
 * The dma-buf of a range, by its file: an fd of another number can be the same dma-buf,
 * and one of the same number another. A region keeps its file (ib_umem_dmabuf_get(), the
 * mapping of soft0), so no other file gets the inode's number meanwhile.
 */
struct pier_cache_file {
	dev_t device;
	ino_t inode; /* 0: the range is no dma-buf */
};

/* The memory and access that a request asks for. */
struct pier_cache_key {
	/*
	 * Addresses. For a dma-buf, offsets from a number that stands for its file: those
	 * of inodes that follow each other are far apart. Dma-bufs whose ranges meet all
	 * the same are told apart by `file`; only one of them is kept.
	 */
	uint64_t start, end;
	uint32_t access;
	struct pier_cache_file file;
	/* The one whose addresses these are; NULL: pointers, or a dma-buf. */
	const struct pier_backend *backend;
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
	const struct pier_buffer *owner; /* the buffer of the request, or NULL */
	struct pier_buffer *buffer;	 /* wrapped for this entry, or NULL */
	struct pier_cache_file file;
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

/* Call the functions down to pier_cache_drop_idle() with the lock of the cache. */

/* Find a kept region that serves a request, or NULL. */
struct pier_cache_entry *pier_cache_find(struct pier_mr_cache *cache,
					 const struct pier_cache_key *key);

/*
 * Make room for a region and count it. Returns false, and does nothing, if dropping all
 * idle regions would not make enough room.
 */
bool pier_cache_reserve(struct pier_mr_cache *cache, uint64_t length);
/* Undo pier_cache_reserve() for a region that is not kept after all. */
void pier_cache_unreserve(struct pier_mr_cache *cache, uint64_t length);

/*
 * Keep an entry that is in use and that room was made for. Drops the kept entries that
 * it encloses. Returns false, and does not keep it, if there are too many sets.
 *
 * backend  of its memory; NULL: a dma-buf
 */
bool pier_cache_keep(struct pier_cache_entry *entry, const struct pier_backend *backend,
		     uint32_t access);

/* Count one more user of an entry, or one less. */
void pier_cache_use(struct pier_cache_entry *entry);
void pier_cache_unuse(struct pier_cache_entry *entry);

/* Stop keeping an entry: it is dead if it has no users, otherwise loose. */
void pier_cache_drop(struct pier_cache_entry *entry);

/*
 * The same for all entries that overlap, including those being registered: of dma-bufs,
 * or of all other memory.
 */
void pier_cache_drop_range(struct pier_mr_cache *cache, uint64_t start, uint64_t end,
			   bool dmabufs);

/* The same for all idle entries; those that were stuck are tried again. */
void pier_cache_drop_idle(struct pier_mr_cache *cache);

/* Call the functions from here on without any of these locks, except as stated. */

/* Stop keeping the regions of that key in all caches of the PD. Any thread. */
void pier_caches_drop_key(const struct pier_pd *pd, uint32_t lkey);

/* Deregister all dead entries. Returns the first error; entries that fail are stuck. */
int pier_cache_reap(struct pier_mr_cache *cache);

/*
 * The same, and wait for other threads that deregister entries which overlap the range.
 *
 * Errors: those of pier_mr_dereg(); -EBUSY also if they take 30 s.
 */
int pier_cache_reap_range(struct pier_mr_cache *cache, uint64_t start, uint64_t end);

/* Free an entry that has no region and is in no list. */
void pier_cache_free_entry(struct pier_cache_entry *entry);

/*
 * The memory of an entry, by the number that its backend has for each segment. Segments
 * are mapped and unmapped one by one (PyTorch's expandable segments), so an entry that
 * spans several is stale as soon as one of them is.
 */

/*
 * Read the numbers of the segments in the entry's range. Returns false, and the entry has
 * none, if the backend does not know one of them.
 */
bool pier_cache_identify(struct pier_cache_entry *entry,
			 const struct pier_backend *backend,
			 const struct pier_memory *memory);

/* Whether all segments still have their numbers; true for an entry without any. */
bool pier_cache_is_current(const struct pier_cache_entry *entry);

/*
 * Whether `kept`, whose range encloses that of `entry`, was registered with the memory
 * that `entry` has. With the cache's lock or without.
 */
bool pier_cache_has_memory_of(const struct pier_cache_entry *kept,
			      const struct pier_cache_entry *entry);

/* All caches of the process. */

/* Before the first cache: ask to be told of unmapped memory, freed buffers and forks. */
void pier_caches_init(void);

void pier_caches_add(struct pier_mr_cache *cache);
/* Also waits for other threads that work in it. -EBUSY: it is still in the list. */
int pier_caches_remove(struct pier_mr_cache *cache);

#endif
