/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CACHE_H
#define PIER_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <pier/buffer.h>
#include <pier/device.h>
#include <pier/export.h>
#include <pier/mr.h>

PIER_BEGIN_DECLS

/**
 * The registration cache: regions that are kept after use, for the next request
 * on the same memory.
 *
 * A cache has one protection domain. A request is a hit if a kept region
 * encloses its range, has at least its rights and equal other flags
 * (RELAXED_ORDERING and ON_DEMAND are no rights: they must be the same), and
 * still stands for the memory that is there now. So a region that is handed out
 * may be larger than what was asked for, and may allow more: describe to a peer
 * what it shall have with pier_mr_remote() and pier_remote_sub(), and mind that
 * its key opens all of the region.
 *
 * Memory that is freed and comes back must not hit. How that is known depends on
 * whose memory it is:
 *
 * Buffers that are given as such (pier_mr_cache_get_buffer()): pier_buffer_free()
 * drops their regions. Pointers into memory of a backend that tells allocations
 * apart (`identity` in <pier/backend.h>): it is asked at each hit. Pointers into
 * memory of a backend that has find() and release(), such as memfd, udmabuf and
 * dma_heap: the kept region holds the allocation, and pier_buffer_free() drops
 * the region first.
 *
 * Host memory of the program (malloc(3), mmap(2)): its pages are watched by
 * userfaultfd(2), for munmap(2), mremap(2), brk(2), mmap(2) with MAP_FIXED and
 * madvise(2) with MADV_DONTNEED, MADV_FREE and MADV_REMOVE. Such a call waits
 * until a thread of pier has taken note, some tens of microseconds; when it has
 * returned, no request on any thread hits the old memory, and memory that another
 * thread was given at the same address in the meantime does not hit either. At
 * each hit the kernel is asked by one cheap ioctl(2) whether such a call is under
 * way. All caches of a process share the watch. No page is ever write-protected.
 *
 * Not seen, so that pier_mr_cache_invalidate() is the caller's: a shared file or
 * memfd that is truncated or punched through its fd, by whichever process;
 * mprotect(2), after which the old rights still hit; memory that the program
 * frees while another thread asks for it; what a child of vfork(2) does, and
 * UFFDIO_MOVE.
 *
 * Not watched, so that it is registered anew for each request ("uncached"):
 * private or shared mappings of files, which includes a program's own data and
 * constants; huge pages of hugetlbfs unless the range has whole ones; pages that
 * a userfaultfd of the program watches; mappings of device memory; what would
 * take more mappings than vm.max_map_count; and everything where userfaultfd(2)
 * cannot be had or is older than Linux 5.7, of which the log and the statistics
 * tell. PIER_MR_CACHE_UNWATCHED caches all of it, and leaves it to the caller to
 * tell what was freed.
 *
 * No lock is held while a region is registered or deregistered or a backend is
 * asked. Several threads that miss the same range at once may each register it;
 * one region stays, and the others are deregistered before the calls return.
 *
 * Threads: any thread may call any function at once, but a cache must not be
 * destroyed while another thread uses it. Processes: a child of fork(2) must not
 * use its parent's caches.
 */

struct pier_mr_cache;

/** Flags of struct pier_mr_cache_attr, ored together. */
enum pier_mr_cache_flags {
	/**
	 * Watch nothing: the caller says with pier_mr_cache_invalidate() when host
	 * memory goes, before it is freed.
	 */
	PIER_MR_CACHE_UNWATCHED = 1,
};

/** What a cache is like; begin with pier_mr_cache_attr_init(). */
struct pier_mr_cache_attr {
	size_t size;		 /**< sizeof(struct pier_mr_cache_attr) */
	size_t max_count;	 /**< regions that are kept at most; 0: none */
	uint64_t max_bytes;	 /**< and bytes of them together */
	enum pier_policy policy; /**< as pier_reg_buffer_mr() takes it */
	uint32_t flags;		 /**< enum pier_mr_cache_flags */
};

/** Set every field to its default. Cannot fail. */
static inline void pier_mr_cache_attr_init(struct pier_mr_cache_attr *attr)
{
	memset(attr, 0, sizeof(*attr));
	attr->size = sizeof(*attr);
	attr->max_count = 4096;
	attr->max_bytes = UINT64_MAX;
	attr->policy = PIER_POLICY_DIRECT;
}

/** What a cache did since it was made, and what it has now. */
struct pier_mr_cache_stats {
	uint64_t hits;		/**< requests served by a region that was kept */
	uint64_t misses;	/**< requests for which one was registered */
	uint64_t evictions;	/**< kept regions that made room for others */
	uint64_t invalidations; /**< kept regions whose memory went, or was said to */
	uint64_t uncached;	/**< misses whose region is not kept after use */
	uint64_t unwatched;	/**< of these, because nobody can watch the memory */
	size_t count;		/**< regions that are kept now, in use or not */
	uint64_t bytes;		/**< of them */
	size_t in_use;		/**< regions that are handed out now, kept or not */
	size_t watched;		/**< of those kept, how many the kernel watches */
	bool watching;		/**< host memory can be watched in this process */
};

/**
 * Make a registration cache of a protection domain.
 *
 * pd    stays the caller's, and busy until pier_mr_cache_destroy()
 * attr  NULL: the defaults, 4096 regions of any length, watched
 *
 * The first watching cache of a process starts two threads, which the last one
 * ends. Where host memory cannot be watched the cache is made all the same, and
 * the log (PIER_LOG_WARNING) says why.
 *
 * Errors: -EINVAL attr->size is not that of any version, a field that this
 * library does not know is not zero, an unknown policy or flag; -ENOMEM.
 */
PIER_API int pier_mr_cache_create(struct pier_pd *pd,
				  const struct pier_mr_cache_attr *attr,
				  struct pier_mr_cache **ret_cache);

/**
 * Deregister what is kept and give the cache back; NULL is fine.
 *
 * Errors: -EBUSY a region is handed out, or could not be deregistered because
 * something is bound to it; -ETIMEDOUT another thread of pier has been
 * deregistering one of its regions for 30 s. Nothing that is seen was changed.
 */
PIER_API int pier_mr_cache_destroy(struct pier_mr_cache *cache);

/**
 * A region of [addr, addr + length), of whichever memory that is; see
 * pier_buffer_wrap() on how its owner is found.
 *
 * access  enum pier_access, ored
 *
 * The region is the cache's: it is given back with pier_mr_cache_put(), once for
 * each time it was handed out, and never to pier_dereg_mr(). Its iovas are the
 * memory's addresses. The memory must stay until it was put.
 *
 * Errors: those of pier_buffer_wrap() and pier_reg_buffer_mr(). A registration
 * that failed with -ENOMEM is tried again without the regions that are kept and
 * not in use.
 */
PIER_API int pier_mr_cache_get(struct pier_mr_cache *cache, void *addr, size_t length,
			       int access, struct pier_mr **ret_mr);

/**
 * The same of [offset, offset + length) of a buffer.
 *
 * While the region is handed out pier_buffer_free() is -EBUSY; one that is only
 * kept does not hinder it.
 *
 * Errors: those of pier_reg_buffer_mr().
 */
PIER_API int pier_mr_cache_get_buffer(struct pier_mr_cache *cache,
				      struct pier_buffer *buffer, size_t offset,
				      size_t length, int access, struct pier_mr **ret_mr);

/**
 * Give back a region when no request on it is outstanding; NULL is fine. It is
 * kept for later, or deregistered if it could not be cached or its memory went
 * in the meantime.
 *
 * Errors: -EINVAL not from this cache, or given back more often than handed out;
 * those of pier_dereg_mr(), in which case pier_mr_cache_flush() tries again.
 */
PIER_API int pier_mr_cache_put(struct pier_mr_cache *cache, struct pier_mr *mr);

/**
 * The memory of [addr, addr + length) is about to go, or has gone: no later
 * request hits a region that overlaps it. Those that are not in use are
 * deregistered before this returns, those that are when they are put.
 *
 * Errors: -EINVAL the range leaves the address space; those of pier_dereg_mr().
 */
PIER_API int pier_mr_cache_invalidate(struct pier_mr_cache *cache, void *addr,
				      size_t length);

/**
 * Deregister all regions that are not in use.
 *
 * Errors: those of pier_dereg_mr(), after all were tried.
 */
PIER_API int pier_mr_cache_flush(struct pier_mr_cache *cache);

/** What the cache did and has. Cannot fail. */
PIER_API void pier_mr_cache_query_stats(struct pier_mr_cache *cache,
					struct pier_mr_cache_stats *ret_stats);

PIER_END_DECLS

#endif
