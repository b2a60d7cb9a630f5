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
 * The registration cache: regions that are kept after use, for later requests on the
 * same memory.
 *
 * A cache belongs to one protection domain. A request is a hit if a kept region
 * encloses its range, has at least the requested rights, has the same other flags
 * (RELAXED_ORDERING and ON_DEMAND are not rights and must be equal), and still refers
 * to the memory that is at these addresses now. A region from the cache can therefore
 * be larger than the request and allow more. Use pier_mr_remote() and pier_remote_sub()
 * to describe only the requested range to a peer. The region's key still gives access
 * to all of the region.
 *
 * If memory is freed and its addresses are used again, a request must not hit the old
 * region. How the cache detects this depends on the owner of the memory:
 *
 * Buffers: pier_buffer_free() drops their regions. Dma-bufs given by an fd: the file
 * decides, not the number of the fd, and a kept region keeps the dma-buf and its memory,
 * also if all fds of it are closed; see pier_mr_cache_invalidate().
 * Pointers into memory of a backend that identifies allocations (`identity` in
 * <pier/backend.h>): the cache asks the backend at each hit. Pointers into memory of a
 * backend that has find() and release(), such as memfd, udmabuf and dma_heap: the kept
 * region holds the allocation, and pier_buffer_free() drops the region first.
 *
 * Host memory of the program (malloc(3), mmap(2)): userfaultfd(2) watches its pages for
 * munmap(2), mremap(2), brk(2), mmap(2) with MAP_FIXED, and madvise(2) with
 * MADV_DONTNEED, MADV_FREE and MADV_REMOVE. Such a call waits some tens of microseconds
 * until a thread of pier has processed it. After it has returned, no request on any
 * thread hits the old memory, nor does memory that another thread received at the same
 * address in the meantime. At each hit the cache asks the kernel by one cheap ioctl(2)
 * whether such a call is in progress. All caches of a process share the watch. No page
 * is ever write-protected.
 *
 * The cache does not see the following changes; the caller must report them with
 * pier_mr_cache_invalidate(): a shared file or memfd that any process truncates or
 * punches through its fd; mprotect(2), after which the old rights still hit; memory
 * that the program frees while another thread requests it; changes by a child of
 * vfork(2); and UFFDIO_MOVE.
 *
 * The following memory is not watched, so each request registers it again ("uncached"):
 * private and shared mappings of files, including a program's own data and constants;
 * ranges of hugetlbfs that are not whole huge pages; pages that a userfaultfd of the
 * program watches; mappings of device memory; ranges whose watch would exceed
 * vm.max_map_count mappings; and all host memory if userfaultfd(2) is unavailable or
 * Linux is older than 5.7, which the log and the statistics report. With
 * PIER_MR_CACHE_UNWATCHED all of it is cached, and the caller must report what was
 * freed.
 *
 * A region that a channel's device could not access is not handed out again, because the
 * exporter of a dma-buf can revoke its memory and tells nobody (docs/devices.md).
 *
 * The cache holds no lock while it registers or deregisters a region or calls a
 * backend. If several threads miss the same range at once, each may register it; one
 * region stays, and the others are deregistered before the calls return.
 *
 * Threads: any thread may call any function at any time, but a cache must not be
 * destroyed while another thread uses it. Processes: a child of fork(2) must not use
 * its parent's caches.
 */

struct pier_mr_cache;

/** Flags of a cache: values of pier_mr_cache_attr.flags, ored. */
enum pier_mr_cache_flag {
	/**
	 * Watch nothing. Before host memory is freed, the caller must call
	 * pier_mr_cache_invalidate().
	 */
	PIER_MR_CACHE_UNWATCHED = 1,
};

/** The attributes of a cache. Set them up with pier_mr_cache_attr_init(). */
struct pier_mr_cache_attr {
	size_t size;	    /**< sizeof(struct pier_mr_cache_attr) */
	uint32_t max_count; /**< the most regions to keep; 0: none */
	uint64_t max_bytes; /**< the most bytes of all kept regions together */
	/**
	 * Of each registration, as for pier_mr_reg_buffer(). Ranges are split between
	 * segments only (PIER_SPLIT_SEAMS): register a range that needs pieces yourself.
	 */
	enum pier_policy policy;
	uint32_t flags; /**< enum pier_mr_cache_flag, ored */
	/**
	 * Of each registration, as in struct pier_mr_attr. Regions with different hints
	 * need a cache each.
	 */
	enum pier_tph tph;
	int tph_cpu; /**< as there; -1: none */
};

/**
 * Set every field to its default: 4096 regions of any length, direct paths, watched.
 * Cannot fail.
 */
static inline void pier_mr_cache_attr_init(struct pier_mr_cache_attr *attr)
{
	memset(attr, 0, sizeof(*attr));
	attr->size = sizeof(*attr);
	attr->max_count = 4096;
	attr->max_bytes = UINT64_MAX;
	attr->policy = PIER_POLICY_DIRECT;
	attr->tph_cpu = -1;
}

/** Counts since the cache was created, and its present contents. */
struct pier_mr_cache_stats {
	uint64_t hits;		/**< requests served by a kept region */
	uint64_t misses;	/**< requests that registered a region */
	uint64_t evictions;	/**< kept regions dropped to make room */
	uint64_t invalidations; /**< kept regions whose memory went, or was reported */
	uint64_t uncached;	/**< misses whose region is not kept after use */
	uint64_t unwatched;	/**< of `uncached`: the memory cannot be watched */
	uint32_t count;		/**< regions kept now, in use or idle */
	uint64_t bytes;		/**< of the kept regions */
	uint32_t in_use;	/**< regions in use now, kept or not */
	uint32_t watched;	/**< kept regions that the kernel watches */
	bool watching;		/**< whether this process can watch host memory */
};

/**
 * Create a registration cache for a protection domain.
 *
 * pd    borrowed; pier_pd_dealloc() fails with -EBUSY until pier_mr_cache_destroy()
 * attr  NULL: the defaults, which are 4096 regions of any length, watched
 *
 * The first watching cache of a process starts two threads; destroying the last one
 * ends them. If host memory cannot be watched, the cache is created all the same, and
 * the log (PIER_LOG_WARNING) gives the reason.
 *
 * Errors: -EINVAL attr->size matches no version, a field that this library does not
 * know is not zero, a policy, flag or `tph` is unknown, or `tph_cpu` is neither a CPU nor
 * -1; -ENOMEM.
 */
PIER_API int pier_mr_cache_create(struct pier_pd *pd,
				  const struct pier_mr_cache_attr *attr,
				  struct pier_mr_cache **ret_cache);

/**
 * Deregister the kept regions and destroy a cache. NULL is allowed.
 *
 * Errors: -EBUSY a region is in use, could not be deregistered because something is
 * bound to it, or is being deregistered by another thread, which has taken 30 s. On
 * failure the cache is unchanged for its callers.
 */
PIER_API int pier_mr_cache_destroy(struct pier_mr_cache *cache);

/**
 * Get a region for a range of memory.
 *
 * range   borrowed for the call. A buffer; a dma-buf, by an fd and an offset; or an
 *         address, for which the cache looks up the owner as pier_buffer_wrap() does,
 *         also if the source is PIER_MR_HOST
 * access  enum pier_access, ored
 *
 * The region belongs to the cache. Return it with pier_mr_cache_put() once for each
 * time that you got it, and never with pier_mr_dereg(). Its iovas are the addresses of
 * the memory, or the offsets in the dma-buf. The memory must stay valid until then.
 *
 * While the region of a buffer is in use, pier_buffer_free() fails with -EBUSY. A region
 * that is only kept does not prevent it.
 *
 * Errors: those of pier_buffer_wrap() and pier_mr_reg_attr(). If a registration fails
 * with -ENOMEM, the cache deregisters its idle regions and tries once more.
 */
PIER_API int pier_mr_cache_get(struct pier_mr_cache *cache,
			       const struct pier_mr_range *range, uint32_t access,
			       struct pier_mr **ret_mr);

/**
 * Return a region to its cache after all requests on it have completed. The cache keeps
 * the region, or deregisters it if it is uncached or its memory was freed in the
 * meantime.
 *
 * mr  NULL: does nothing
 *
 * Errors: -EINVAL the region is not from this cache, or was returned more often than it
 * was handed out; those of pier_mr_dereg(), after which pier_mr_cache_flush() tries
 * again.
 */
PIER_API int pier_mr_cache_put(struct pier_mr_cache *cache, struct pier_mr *mr);

/**
 * Drop the regions of a range, because this memory is about to be freed or was freed; or
 * those of a dma-buf, so that they no longer keep it. Later requests do not hit a region
 * that overlaps the range. Idle regions are deregistered before this call returns,
 * regions in use when they are returned.
 *
 * range  as for pier_mr_cache_get(); of any length
 *
 * Errors: -EINVAL the range exceeds the address space; -ERANGE it is not inside the
 * buffer; -EBADF the fd is not open; those of pier_mr_dereg(), -EBUSY also if another
 * thread has been deregistering one of the regions for 30 s.
 */
PIER_API int pier_mr_cache_invalidate(struct pier_mr_cache *cache,
				      const struct pier_mr_range *range);

/**
 * Deregister all idle regions.
 *
 * Errors: those of pier_mr_dereg(), after all idle regions were tried; -EBUSY also as
 * for pier_mr_cache_invalidate().
 */
PIER_API int pier_mr_cache_flush(struct pier_mr_cache *cache);

/**
 * Return the statistics of a cache.
 *
 * ret_stats  written up to `size` bytes
 * size       sizeof(*ret_stats) in the caller
 *
 * Cannot fail.
 */
PIER_API void pier_mr_cache_query_stats(struct pier_mr_cache *cache,
					struct pier_mr_cache_stats *ret_stats,
					size_t size);

PIER_END_DECLS

#endif
