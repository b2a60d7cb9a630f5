/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_MR_H
#define PIER_MR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <pier/buffer.h>
#include <pier/device.h>
#include <pier/export.h>

PIER_BEGIN_DECLS

/**
 * Memory regions: memory that a NIC may read and write.
 *
 * Each region has its own address space, which begins at the region's iova and is as
 * long as the region. Elements and remote descriptors use these addresses. For memory
 * registered with pier_mr_reg() the iova is the memory's address.
 *
 * The library checks the arguments before the system call. It applies the kernel's
 * rules and returns the kernel's errno; pier_error_message() names the value and the
 * rule. If the kernel refuses a call that passed these checks, its errno is returned
 * unchanged.
 *
 * Threads: any thread may call any function. A region must not be deregistered while
 * another thread uses it.
 *
 * Processes: in a child of fork(2), registering memory in a protection domain of the
 * parent and deregistering a region of the parent fail with -ECHILD (<pier/device.h>).
 */

struct pier_mr;

/**
 * Access rights of a region, ored together. The names and values are those of enum
 * ibv_access_flags. Local reads are always allowed. REMOTE_WRITE and REMOTE_ATOMIC
 * require LOCAL_WRITE (ibv_reg_mr(3)).
 *
 * REMOTE_ATOMIC, MW_BIND and ON_DEMAND require a device that supports them: see struct
 * pier_device_attr. A region on a dma-buf cannot have MW_BIND or ON_DEMAND
 * (UVERBS_METHOD_REG_DMABUF_MR in the kernel).
 */
enum pier_access {
	PIER_ACCESS_LOCAL_READ = 0,
	PIER_ACCESS_LOCAL_WRITE = 1,
	PIER_ACCESS_REMOTE_WRITE = 1 << 1,
	PIER_ACCESS_REMOTE_READ = 1 << 2,
	PIER_ACCESS_REMOTE_ATOMIC = 1 << 3,
	/** Memory windows can be bound to the region: see pier_mr_bind_sub(). */
	PIER_ACCESS_MW_BIND = 1 << 4,
	/** Pages are not pinned; the NIC looks each one up when it accesses it. */
	PIER_ACCESS_ON_DEMAND = 1 << 6,
	/**
	 * Writes by the NIC may become visible out of order, which may be faster: also
	 * the bytes of one write, and writes that follow each other. When a completion
	 * has been received, all bytes of that and of earlier requests are there as
	 * always (ibv_reg_mr(3), "ordering semantics"), and pier_mr_sync_for_device()
	 * and pier_mr_read_back() do what they do without the flag. Nothing may be
	 * concluded from bytes that are there before: neither from the last byte of a
	 * write nor from a flag that was written behind it.
	 */
	PIER_ACCESS_RELAXED_ORDERING = 1 << 20,
	/** Local write, remote read and remote write. */
	PIER_ACCESS_SHARED = 1 | (1 << 1) | (1 << 2),
};

/** How the NIC reaches a region's memory. */
enum pier_path {
	PIER_PATH_HOST = 1,    /**< host memory: ibv_reg_mr(3) on CPU pages */
	PIER_PATH_DMABUF = 2,  /**< a dma-buf: ibv_reg_dmabuf_mr(3) */
	PIER_PATH_PEERMEM = 3, /**< ibv_reg_mr(3) on a device pointer */
	PIER_PATH_BOUNCE = 4,  /**< a bounce buffer in host memory; bytes are copied */
	PIER_PATH_MIXED = 5,   /**< several ranges with different paths */
	PIER_PATH_NIC = 6,     /**< the NIC's own memory: ibv_reg_dm_mr(3) */
};

/**
 * Return the name of a path: "host", "dma-buf", "peermem", "bounce", "mixed" or
 * "nic"; "unknown" for any other value. Cannot fail.
 */
PIER_API const char *pier_path_name(enum pier_path path);

/**
 * The paths that the caller accepts for a buffer. Each policy includes those before it.
 */
enum pier_policy {
	/**
	 * Only the path that the memory is made for: a dma-buf if the backend exports
	 * dma-bufs; host memory if it does not, or if the memory is page-locked host
	 * memory of a GPU driver.
	 */
	PIER_POLICY_DIRECT = 0,
	/**
	 * Also ibv_reg_mr(3) on the device pointer, if the CPU cannot reach the memory.
	 * This requires a kernel with a peer memory module (nvidia-peermem).
	 */
	PIER_POLICY_PEERMEM = 1,
	/**
	 * Also host memory, if the CPU can reach the memory, or a dma-buf of
	 * page-locked memory. pier_mr_path() reports the path that was taken, and
	 * pier_mr_reason() why no better path was possible.
	 */
	PIER_POLICY_ANY = 2,
	/**
	 * Also a bounce buffer (PIER_PATH_BOUNCE): host memory of the same length that
	 * the NIC uses instead of memory that it cannot reach. Bytes are copied between
	 * the two only by pier_mr_sync_for_nic() and pier_mr_sync_for_device()
	 * (<pier/sync.h>). Use this policy only in code that calls them.
	 */
	PIER_POLICY_BOUNCE = 3,
};

/**
 * Register host memory [addr, addr + length).
 *
 * length  in bytes, more than 0
 * access  enum pier_access, ored
 *
 * The caller keeps ownership of the memory, which must stay mapped until
 * pier_mr_dereg().
 *
 * Errors: -EINVAL length is 0, access has an unknown flag or a combination that the
 * kernel refuses, or the range wraps around the address space or has more than 2^32 - 1
 * pages; -EFAULT the memory is not mapped, is not writable although access requires it,
 * or is a mapping of device memory; -E2BIG length exceeds the device's max_mr_size, and
 * the driver refuses it; -ENOMEM RLIMIT_MEMLOCK or the device's resources are exhausted;
 * -EPERM RLIMIT_MEMLOCK is 0; others of ibv_reg_mr(3).
 */
PIER_API int pier_mr_reg(struct pier_pd *pd, void *addr, uint64_t length, uint32_t access,
			 struct pier_mr **ret_mr);

/**
 * Register a range of a dma-buf that the caller provides. The arguments have the order
 * of ibv_reg_dmabuf_mr(3).
 *
 * offset  of the first byte in the dma-buf, in bytes
 * length  in bytes, more than 0
 * iova    the region's first address; must equal offset modulo the host page size
 * fd      borrowed; the caller may close it after this call returns
 * access  LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE, REMOTE_ATOMIC and RELAXED_ORDERING
 *         are allowed
 *
 * Errors: -EOPNOTSUPP the device cannot register dma-bufs, because the provider or the
 * driver lacks the operation; -EINVAL offset and iova differ modulo the page size,
 * access has a flag or combination that is not allowed, fd is not a dma-buf, length is
 * 0, offset + length exceeds the dma-buf or 64 bits, or iova + length exceeds 64 bits;
 * -EBADF fd is not open; -E2BIG length exceeds the device's max_mr_size, and the driver
 * refuses it; -ENOMEM; others of the driver.
 */
PIER_API int pier_mr_reg_dmabuf(struct pier_pd *pd, uint64_t offset, uint64_t length,
				uint64_t iova, int fd, uint32_t access,
				struct pier_mr **ret_mr);

/**
 * Register [offset, offset + length) of a buffer. The range's own address is its iova.
 * The range is exported and registered as a dma-buf if the memory and the device
 * support this; otherwise the policy decides.
 *
 * offset  in the buffer, in bytes
 * length  in bytes, more than 0
 * access  enum pier_access, ored
 * policy  the paths to accept
 *
 * The region keeps the buffer: pier_buffer_free() fails with -EBUSY until
 * pier_mr_dereg().
 *
 * Errors: -ERANGE the range is not inside the buffer; -EINVAL length is 0, the policy
 * is unknown, or the access is not possible; -EOPNOTSUPP no path that the policy
 * accepts is possible; -E2BIG; -ENOMEM; others of the export or the driver. If several
 * paths were tried, the errno is that of the last one, and pier_error_message() gives
 * the reason for each.
 */
PIER_API int pier_mr_reg_buffer(struct pier_pd *pd, struct pier_buffer *buffer,
				uint64_t offset, uint64_t length, uint32_t access,
				enum pier_policy policy, struct pier_mr **ret_mr);

/** How a range of memory is specified. */
enum pier_mr_source {
	PIER_MR_HOST = 1,    /**< addr: host memory */
	PIER_MR_BUFFER = 2,  /**< buffer and offset */
	PIER_MR_DMABUF = 3,  /**< fd and offset: a dma-buf of the caller */
	PIER_MR_POINTER = 4, /**< addr: the backends are asked for its owner */
};

/**
 * A range of memory. Use the pier_mr_range_...() functions to make one. Fields that a
 * source does not use are 0, or -1 for fd. Frozen: attributes have arrays of them.
 *
 * A region keeps its buffers: freeing one of them fails with -EBUSY. All other memory
 * must stay valid until pier_mr_dereg(). An fd may be closed after the registration has
 * returned.
 */
struct pier_mr_range {
	enum pier_mr_source source;
	int fd;			    /**< for PIER_MR_DMABUF; borrowed */
	void *addr;		    /**< for PIER_MR_HOST and PIER_MR_POINTER */
	struct pier_buffer *buffer; /**< for PIER_MR_BUFFER */
	uint64_t offset;	    /**< in the buffer or the dma-buf, in bytes */
	uint64_t length;	    /**< in bytes, more than 0 */
};

/** Return a range of host memory. */
static inline struct pier_mr_range pier_mr_range_host(void *addr, uint64_t length)
{
	struct pier_mr_range range;

	range.source = PIER_MR_HOST;
	range.fd = -1;
	range.addr = addr;
	range.buffer = NULL;
	range.offset = 0;
	range.length = length;
	return range;
}

/** Return a range of a buffer. */
static inline struct pier_mr_range pier_mr_range_buffer(struct pier_buffer *buffer,
							uint64_t offset, uint64_t length)
{
	struct pier_mr_range range;

	range.source = PIER_MR_BUFFER;
	range.fd = -1;
	range.addr = NULL;
	range.buffer = buffer;
	range.offset = offset;
	range.length = length;
	return range;
}

/** Return a range of a dma-buf. */
static inline struct pier_mr_range pier_mr_range_dmabuf(int fd, uint64_t offset,
							uint64_t length)
{
	struct pier_mr_range range;

	range.source = PIER_MR_DMABUF;
	range.fd = fd;
	range.addr = NULL;
	range.buffer = NULL;
	range.offset = offset;
	range.length = length;
	return range;
}

/** Return a range of memory whose owner the backends are asked for. */
static inline struct pier_mr_range pier_mr_range_pointer(void *addr, uint64_t length)
{
	struct pier_mr_range range;

	range.source = PIER_MR_POINTER;
	range.fd = -1;
	range.addr = addr;
	range.buffer = NULL;
	range.offset = 0;
	range.length = length;
	return range;
}

/** Where a region's addresses begin. */
enum pier_addressing {
	/**
	 * At the address of the first range: the pointer of host memory;
	 * pier_buffer_address() plus the offset for a buffer; the offset for a dma-buf.
	 */
	PIER_ADDRESSING_VIRTUAL = 0,
	/**
	 * At 0, or at the memory's offset in its page if it does not begin on a page
	 * boundary and has no indirect key (PIER_SPLIT_NEVER). The kernel maps whole
	 * pages, so iova and address must be equal modulo the page size (ib_umem_get()).
	 * pier_mr_iova() returns the result.
	 */
	PIER_ADDRESSING_ZERO_BASED = 1,
	/** At `iova`, which must equal the address modulo the page size. */
	PIER_ADDRESSING_IOVA = 2,
};

/** Where a region may be divided into parts. */
enum pier_split {
	/** Between ranges, unless one dma-buf or a requested key covers all of them. */
	PIER_SPLIT_SEAMS = 0,
	/**
	 * Also within a range that is longer than the device's max_mr_size, or whose
	 * registration fails with -ENOMEM. Such a range is registered in smaller
	 * pieces.
	 */
	PIER_SPLIT_PIECES = 1,
	/**
	 * Nowhere: the registration gives one key or fails with -EOPNOTSUPP. On mlx5
	 * and soft0, with PIER_ADDRESSING_ZERO_BASED, one indirect key can cover several
	 * ranges, and all segments of a range; see pier_mr_reg_attr().
	 */
	PIER_SPLIT_NEVER = 2,
};

/** Whether the library may add PIER_ACCESS_RELAXED_ORDERING. */
enum pier_ordering {
	/**
	 * Added where software learns of arrived bytes only through completions: for
	 * device memory whose backend allows it (any_order in <pier/backend.h>), and to
	 * which no peer can write (neither REMOTE_WRITE nor REMOTE_ATOMIC).
	 * PIER_RELAXED_ORDERING=on does so for every region (pier(1)). Like the flag
	 * itself, this is a hint: not every device has such an ordering.
	 */
	PIER_ORDERING_AUTO = 0,
	/** It does not: something waits for bytes to change. */
	PIER_ORDERING_STRICT = 1,
	/**
	 * As PIER_ORDERING_AUTO, also if peers write to the region: this end uses their
	 * bytes only after a completion of its own, such as that of a message that
	 * followed the writes.
	 */
	PIER_ORDERING_COMPLETIONS = 2,
};

/**
 * TPH, the hints of PCI Express about the use of memory (PCI Express Base Specification,
 * 6.17): with each access to the region the NIC sends such a hint, and the CPU may place
 * the bytes in a cache accordingly. Hints never change the result of an access.
 */
enum pier_tph {
	PIER_TPH_NONE = 0,	      /**< no hint */
	PIER_TPH_BIDIRECTIONAL = 1,   /**< the CPU and the NIC use the bytes often */
	PIER_TPH_REQUESTER = 2,	      /**< the NIC uses them often */
	PIER_TPH_TARGET = 3,	      /**< the CPU uses them often */
	PIER_TPH_TARGET_PRIORITY = 4, /**< the CPU uses them often and soon */
};

/** The most parts that a region can have, and the most ranges it can be made of. */
#define PIER_MR_PARTS_MAX 1024

/** The attributes of a registration. Set them up with pier_mr_attr_init(). */
struct pier_mr_attr {
	/** sizeof(struct pier_mr_attr), so that fields can be added. */
	size_t size;
	/**
	 * The memory, in the order of the region's addresses. Borrowed for the call.
	 */
	const struct pier_mr_range *ranges;
	uint32_t range_count; /**< 1 to PIER_MR_PARTS_MAX */
	uint32_t access;      /**< enum pier_access, ored */
	enum pier_addressing addressing;
	enum pier_policy policy; /**< for buffers and pointers */
	enum pier_split split;
	/**
	 * The key for peers, from 1 to the device's max_requested_key; 0: the device
	 * chooses.
	 */
	uint32_t requested_key;
	uint64_t iova; /**< with PIER_ADDRESSING_IOVA */
	/**
	 * A hint: the size of the memory's pages in bytes, a power of two, at least the
	 * host page size. 0: no hint. The library then chooses an iova that equals the
	 * address modulo page_size; an iova that the caller gives must do so, too. A
	 * NIC cannot use large pages otherwise (ib_umem_find_best_pgsz() in the
	 * kernel).
	 */
	uint64_t page_size;
	void *context; /**< returned by pier_mr_query() */
	/**
	 * The mapping of the dma-bufs that backends export. It must be one that the
	 * device accepts. PIER_MAPPING_AUTO tries the mapping that the device accepted
	 * last time, then the other.
	 */
	enum pier_mapping mapping;
	/**
	 * PIER_ORDERING_STRICT excludes PIER_ACCESS_RELAXED_ORDERING in `access`.
	 * PIER_RELAXED_ORDERING=off ignores the flag.
	 */
	enum pier_ordering ordering;
	/**
	 * Other values than PIER_TPH_NONE allocate a DMA handle (ibv_alloc_dmah(3)),
	 * which the region and its sub-regions keep, and register with it
	 * (ibv_reg_mr_ex(3)). This requires libibverbs of rdma-core 59, a device whose
	 * driver supports it, and requested_key 0. Each range then has a key of its own
	 * or is part of one dma-buf. Data Direct engines accept no such handle. soft0
	 * checks the values and ignores them.
	 */
	enum pier_tph tph;
	/**
	 * With a hint: the CPU (numbered as for sched_setaffinity(2)) whose cache the
	 * bytes are for; the process must be allowed to run there. -1: none. Ignored
	 * without a hint.
	 */
	int tph_cpu;
};

/**
 * Set every field to its default: no ranges, local reads only, direct paths, a key that
 * the device chooses. Cannot fail.
 */
static inline void pier_mr_attr_init(struct pier_mr_attr *attr)
{
	memset(attr, 0, sizeof(*attr));
	attr->size = sizeof(*attr);
	attr->addressing = PIER_ADDRESSING_VIRTUAL;
	attr->policy = PIER_POLICY_DIRECT;
	attr->split = PIER_SPLIT_SEAMS;
	attr->mapping = PIER_MAPPING_AUTO;
	attr->tph_cpu = -1;
}

/**
 * Register memory as described by attributes. All other functions that register memory
 * are special cases of this one.
 *
 * The ranges follow each other in one address space and may be of different sources.
 * They share a requested key. They also share one if they are whole pages of memfd
 * buffers, the device accepts dma-bufs, and /dev/udmabuf can join memfds. Otherwise each
 * range becomes a part of the region, if `split` allows this.
 *
 * With PIER_SPLIT_NEVER and PIER_ADDRESSING_ZERO_BASED, mlx5 and soft0 make an indirect
 * key over the keys of such parts: of ranges, and of the segments of a range that its
 * driver does not export as one dma-buf (PyTorch's expandable segments). The addresses
 * of the region then begin at exactly 0. This needs an active port, and takes one queue
 * pair for the time of the call. One request must have room for all parts
 * (`max_joined_ranges` of struct pier_device_attr): it is inline, and of the 1024 bytes
 * that mlx5's requests have, 192 are taken (_sq_overhead() in libmlx5), so 52 entries of
 * 16 bytes are left; soft0 has the same limit. A part of more than 1 GiB needs one for
 * each GiB. MW_BIND, ON_DEMAND and TPH hints are not possible. It has never run on a
 * hardware NIC.
 *
 * attr  borrowed for the call, as are the ranges
 *
 * Errors: -EINVAL size, a source, addressing, policy, split, page_size, tph, tph_cpu or
 * access is not possible, both a hint and a key are requested, there are no ranges or
 * more than PIER_MR_PARTS_MAX, a range is empty, iova does not match the address modulo
 * the page size, or a sum exceeds 64 bits; -ENOKEY the requested key is in use;
 * -EKEYREJECTED the requested key exceeds the device's max_requested_key, or the device
 * chooses all keys; -EOPNOTSUPP the device does not support the access, the device or
 * libibverbs does not support a hint, no path that the policy accepts is possible, or the
 * region needs more parts than `split` allows; -EPERM the process may not run on tph_cpu;
 * -E2BIG a range exceeds max_mr_size, or the region needs more than PIER_MR_PARTS_MAX
 * pieces; -ERANGE a range is outside its buffer or allocation; -EBADF, -EFAULT, -ENOMEM,
 * -EPERM and others as for pier_mr_reg(), pier_mr_reg_dmabuf(), pier_mr_reg_buffer() and
 * pier_buffer_wrap(). On failure nothing stays registered.
 */
PIER_API int pier_mr_reg_attr(struct pier_pd *pd, const struct pier_mr_attr *attr,
			      struct pier_mr **ret_mr);

/**
 * Register [offset, offset + length) of a region again, as a sub-region with its own
 * access rights. It has the addresses of the region but different keys. A peer that has
 * a key of the sub-region gets the rights of the sub-region and no others. Policy,
 * mapping, split, ordering and hint are those that were requested for the region.
 *
 * offset  in the region, in bytes
 * length  in bytes, more than 0
 * access  enum pier_access, ored
 *
 * The sub-region keeps the region: pier_mr_dereg() of a region fails with -EBUSY while
 * it has sub-regions. A sub-region may have sub-regions. pier_mr_bind_sub() uses a
 * memory window instead if the device supports it.
 *
 * Errors: -ERANGE the range is not inside the region; -EOPNOTSUPP the range lies in a
 * dma-buf that was given as an fd; the region keeps no fd, so register the range from
 * the fd; -EINVAL length is 0, or the region is a memory window; others of
 * pier_mr_reg_attr().
 */
PIER_API int pier_mr_reg_sub(struct pier_mr *mr, uint64_t offset, uint64_t length,
			     uint32_t access, struct pier_mr **ret_mr);

/**
 * Deregister a region. NULL is allowed. Afterwards the NIC no longer accesses the
 * memory.
 *
 * A posted request keeps the regions of its elements until it is collected or its
 * channel is destroyed. pier_work_poll() and pier_work_wait() collect a request;
 * pier_channel_poll() collects requests without a handle. Elements of length 0 and data
 * that was sent inline keep no region. The library cannot see what peers do with the
 * region; their later requests fail.
 *
 * Errors: -EBUSY a request that uses the region is outstanding, or complete and not
 * collected (pier_error_message() names the kind of request), the region has
 * sub-regions, or something is bound to it; nothing was changed. -EINVAL the region
 * belongs to a registration cache (<pier/cache.h>). -ECHILD the region belongs to the
 * parent process. Others of ibv_dereg_mr(3); after these, the only call allowed on the
 * region is another pier_mr_dereg().
 */
PIER_API int pier_mr_dereg(struct pier_mr *mr);

/**
 * Return an attribute of a region. None of these functions can fail. The path of a memory
 * window is that of the region to which it is bound.
 */
PIER_API uint64_t pier_mr_iova(const struct pier_mr *mr);
PIER_API uint64_t pier_mr_length(const struct pier_mr *mr);
PIER_API enum pier_path pier_mr_path(const struct pier_mr *mr);

/**
 * Return the reason why a region has no better path: each path that was tried first and
 * its error. Returns "" if the memory's own path was taken. For a region of several
 * parts, this is the first part that has a reason. The string is valid as long as the
 * region. Cannot fail.
 */
PIER_API const char *pier_mr_reason(const struct pier_mr *mr);

/** The attributes of a region, as pier_mr_query() returns them. */
struct pier_mr_info {
	struct pier_pd *pd;
	void *context; /**< pier_mr_attr.context; NULL if there were no attributes */
	uint64_t iova;
	uint64_t length; /**< in bytes */
	/**
	 * enum pier_access, ored. Includes PIER_ACCESS_RELAXED_ORDERING if the library
	 * added it (enum pier_ordering).
	 */
	uint32_t access;
	uint32_t lkey;	/**< of the first part; 0 for a memory window, which has none */
	uint32_t rkey;	/**< of the first part */
	uint32_t parts; /**< their number, 1 or more */
	enum pier_path path; /**< as pier_mr_path() returns it */
	/**
	 * The mapping of the dma-buf through which the region was registered.
	 * PIER_MAPPING_AUTO if the backend has only one mapping, or if the region is not
	 * on a dma-buf exported by a backend.
	 */
	enum pier_mapping mapping;
	bool is_window; /**< the region is a memory window: see pier_mr_bind_sub() */
	/** As pier_mr_reason() returns it. */
	const char *reason;
	/**
	 * The canary's answer for the path of the first part (PIER_CANARY in pier(1)):
	 * "passed"; "not run: " and the reason; "off: PIER_CANARY"; or "" if the path
	 * needs none, such as host memory. Where NVLink-C2C joins the GPU to the CPU, a
	 * dma-buf whose mapping was not tested is registered only with PIER_CANARY=off.
	 * A path that the canary refuses is not taken, so its sentence is in `reason`
	 * or is that of the failed registration; it is returned here if the region is
	 * older than the answer. Valid until the device is closed.
	 */
	const char *canary;
};

/**
 * Return the attributes of a region.
 *
 * ret_info  written up to `size` bytes
 * size      sizeof(*ret_info) in the caller
 *
 * Cannot fail.
 */
PIER_API void pier_mr_query(const struct pier_mr *mr, struct pier_mr_info *ret_info,
			    size_t size);

/** A part of a region: the range that one pair of keys covers. */
struct pier_mr_part_info {
	uint64_t offset; /**< of the part in the region, in bytes */
	uint64_t length; /**< in bytes */
	uint64_t iova;	 /**< the part's first address for its keys */
	uint32_t lkey;
	uint32_t rkey;
	enum pier_path path;
};

/** Return the number of parts of a region, 1 or more. Cannot fail. */
PIER_API uint32_t pier_mr_parts(const struct pier_mr *mr);

/**
 * Describe a part of a region.
 *
 * index     of the part, from 0
 * ret_part  written up to `size` bytes
 * size      sizeof(*ret_part) in the caller
 *
 * Errors: -ERANGE there is no part with this index.
 */
PIER_API int pier_mr_part(const struct pier_mr *mr, uint32_t index,
			  struct pier_mr_part_info *ret_part, size_t size);

/**
 * Return whether [addr, addr + length), in the region's iovas, lies in the region. A
 * range of length 0 does if addr is between the region's first address and one past its
 * last. Cannot fail.
 */
PIER_API bool pier_mr_encloses(const struct pier_mr *mr, uint64_t addr, uint64_t length);

/** The most threads of pier_memory_populate(). */
#define PIER_POPULATE_THREADS_MAX 64

/**
 * Allocate the pages of host memory with several threads. A registration allocates
 * missing pages one after the other while it pins them, which takes most of its time;
 * for huge new memory, several threads can do that before. Measure whether it helps: with
 * two busy processors it took longer in all. Chunks of 16 MiB whose first page is there
 * are skipped.
 *
 * The pages come from the NUMA node of the calling thread, or follow its memory policy,
 * as if it had touched them (set_mempolicy(2)). No bytes change. If RLIMIT_MEMLOCK is too
 * small, the registration still fails, and the memory has been allocated.
 *
 * addr, length  as for the registration; length from 1
 * access        enum pier_access, ored, as for the registration: without rights to write,
 *               pages are only mapped for reading
 * threads       1 to PIER_POPULATE_THREADS_MAX, with the calling one; no more are used
 *               than there are processors for
 *
 * Errors: -EINVAL threads is out of range, length is 0, or the range overflows;
 * -EOPNOTSUPP the kernel is older than 5.14, or the memory is a special mapping; -EFAULT
 * or -ENOMEM part of it is not mapped, not writable, or cannot be allocated; others of
 * madvise(2) with MADV_POPULATE_WRITE. Some of the pages may have been allocated.
 */
PIER_API int pier_memory_populate(void *addr, uint64_t length, uint32_t access,
				  uint32_t threads);

PIER_END_DECLS

#endif
