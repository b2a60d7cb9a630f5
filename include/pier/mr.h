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
 * A region has an address space of its own: it begins at its iova and is as
 * long as the region. Elements and remote descriptors are given in iovas. For
 * memory registered in the ordinary way the iova is the memory's address.
 *
 * Arguments are checked before the system call, by the kernel's rules and with
 * the kernel's errno, and pier_error_message() names the value and the rule. The
 * kernel may still refuse what passed: its errno is then returned as it is.
 *
 * Threads: any thread may call any function; a region must not be deregistered
 * while another thread uses it.
 *
 * Processes: in a child of fork(2), registering in a protection domain of the
 * parent and deregistering a region of the parent are -ECHILD (<pier/device.h>).
 */

struct pier_mr;

/**
 * What may be done with a region, ored together. Names and values are those of
 * enum ibv_access_flags. Local reading is always allowed. REMOTE_WRITE and
 * REMOTE_ATOMIC need LOCAL_WRITE (ibv_reg_mr(3)).
 *
 * REMOTE_ATOMIC, MW_BIND and ON_DEMAND need a device that has them: see
 * struct pier_device_attr. A dma-buf cannot have MW_BIND or ON_DEMAND
 * (UVERBS_METHOD_REG_DMABUF_MR in the kernel).
 */
enum pier_access {
	PIER_ACCESS_LOCAL_READ = 0,
	PIER_ACCESS_LOCAL_WRITE = 1,
	PIER_ACCESS_REMOTE_WRITE = 1 << 1,
	PIER_ACCESS_REMOTE_READ = 1 << 2,
	PIER_ACCESS_REMOTE_ATOMIC = 1 << 3,
	/** Memory windows can be bound to it: see pier_bind_sub_mr(). */
	PIER_ACCESS_MW_BIND = 1 << 4,
	/** Pages are not pinned but looked up as the NIC comes to them. */
	PIER_ACCESS_ON_DEMAND = 1 << 6,
	/** The NIC's writes may become visible out of order: it may be faster. */
	PIER_ACCESS_RELAXED_ORDERING = 1 << 20,
	/** Local write, remote read and remote write. */
	PIER_ACCESS_SHARED = 1 | (1 << 1) | (1 << 2),
};

/** The way by which the NIC reaches a region's memory. */
enum pier_path {
	PIER_PATH_HOST = 1,    /**< host memory: ibv_reg_mr(3) on CPU pages */
	PIER_PATH_DMABUF = 2,  /**< a dma-buf: ibv_reg_dmabuf_mr(3) */
	PIER_PATH_PEERMEM = 3, /**< ibv_reg_mr(3) on a device pointer */
	PIER_PATH_BOUNCE =
		4,	     /**< a bounce buffer: host memory that bytes are copied to */
	PIER_PATH_MIXED = 5, /**< of several ranges, not all in the same way */
};

/** "host", "dma-buf", "peermem", "bounce" or "mixed"; "unknown" for another. */
PIER_API const char *pier_path_name(enum pier_path path);

/** Which paths the caller accepts for a buffer; each includes those before it. */
enum pier_policy {
	/**
	 * Only the one that the memory is made for: a dma-buf if its backend
	 * exports dma-bufs, host memory if it does not, or for page-locked host
	 * memory of a GPU's driver.
	 */
	PIER_POLICY_DIRECT = 0,
	/**
	 * Also ibv_reg_mr(3) on the device's own pointer, where the CPU does not
	 * reach the memory: for kernels with a peer memory module (nvidia-peermem).
	 */
	PIER_POLICY_PEERMEM = 1,
	/**
	 * Also host memory, where the CPU reaches it, or a dma-buf of page-locked
	 * memory; the region tells which path it has with pier_mr_path(), and why
	 * no better one with pier_mr_reason().
	 */
	PIER_POLICY_ANY = 2,
	/**
	 * Also a bounce buffer: host memory of the same length that the NIC uses in
	 * place of memory which it cannot reach (PIER_PATH_BOUNCE). Only
	 * pier_mr_sync_for_nic() and pier_mr_sync_for_device() copy between the two
	 * (<pier/sync.h>), so this is for callers that call them.
	 */
	PIER_POLICY_BOUNCE = 3,
};

/**
 * Register host memory [addr, addr + length).
 *
 * access  enum pier_access, ored
 *
 * The memory stays the caller's and must stay mapped until pier_dereg_mr().
 *
 * Errors: -EINVAL length 0, a flag that is not in enum pier_access or a
 * combination that the kernel refuses, a range that leaves the address space, or
 * one of more than 2^32 - 1 pages; -EFAULT not mapped, not writable although the
 * access asks for it, or a mapping of device memory; -E2BIG longer than the
 * device's max_mr_size; -ENOMEM beyond RLIMIT_MEMLOCK or the device's resources;
 * -EPERM RLIMIT_MEMLOCK is 0; others of ibv_reg_mr(3).
 */
PIER_API int pier_reg_mr(struct pier_pd *pd, void *addr, size_t length, int access,
			 struct pier_mr **ret_mr);

/**
 * Register a part of a dma-buf that the caller has: ibv_reg_dmabuf_mr(3), with
 * its order of arguments.
 *
 * offset  of the first byte in the dma-buf
 * length  in bytes, more than 0
 * iova    the region's first address; equal to offset modulo the host page
 * fd      borrowed, and may be closed once this returned
 * access  LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE, REMOTE_ATOMIC and
 *         RELAXED_ORDERING are possible
 *
 * Errors: -EOPNOTSUPP the device cannot register dma-bufs (the provider or the
 * driver lacks the operation); -EINVAL offset and iova differ modulo the page,
 * an access flag or combination that is not possible, fd is not a dma-buf,
 * length 0, offset + length past the end of the dma-buf or of 64 bits, or iova +
 * length past 64 bits; -EBADF fd is not open; -E2BIG longer than max_mr_size;
 * -ENOMEM; others of the driver.
 */
PIER_API int pier_reg_dmabuf_mr(struct pier_pd *pd, uint64_t offset, size_t length,
				uint64_t iova, int fd, int access,
				struct pier_mr **ret_mr);

/**
 * Register [offset, offset + length) of a buffer, at its own address as iova:
 * exported and registered as a dma-buf where the memory and the device can, as
 * the policy says otherwise.
 *
 * The region keeps the buffer: freeing that is -EBUSY until pier_dereg_mr().
 *
 * Errors: -ERANGE outside the buffer; -EINVAL length 0, unknown policy or
 * access that is not possible; -EOPNOTSUPP no path that the policy accepts;
 * -E2BIG; -ENOMEM; others of the export or the driver. Where several paths were
 * tried the errno is the last one's, and the sentence says of each why it failed.
 */
PIER_API int pier_reg_buffer_mr(struct pier_pd *pd, struct pier_buffer *buffer,
				size_t offset, size_t length, int access,
				enum pier_policy policy, struct pier_mr **ret_mr);

/** What a range of memory is given by. */
enum pier_mr_source {
	PIER_MR_HOST = 1,    /**< addr: host memory */
	PIER_MR_BUFFER = 2,  /**< buffer and offset */
	PIER_MR_DMABUF = 3,  /**< fd and offset: a dma-buf that the caller has */
	PIER_MR_POINTER = 4, /**< addr: whose it is, the backends are asked */
};

/**
 * A range of memory. pier_mr_range_...() make one; what a source does not use is 0.
 *
 * A buffer is kept by the region: freeing it is -EBUSY. All other memory must stay
 * until pier_dereg_mr(); an fd may be closed once the registration returned.
 */
struct pier_mr_range {
	enum pier_mr_source source;
	int fd;			    /**< of PIER_MR_DMABUF; borrowed */
	void *addr;		    /**< of PIER_MR_HOST and PIER_MR_POINTER */
	struct pier_buffer *buffer; /**< of PIER_MR_BUFFER */
	uint64_t offset;	    /**< in the buffer or the dma-buf, in bytes */
	uint64_t length;	    /**< in bytes, more than 0 */
};

/** Host memory. */
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

/** A part of a buffer. */
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

/** A part of a dma-buf. */
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

/** Memory whose owner the backends are asked for. */
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
	 * At the address of the (first) range: of host memory its pointer, of a
	 * buffer pier_buffer_address() and the offset, of a dma-buf the offset.
	 */
	PIER_ADDRESSING_VIRTUAL = 0,
	/**
	 * At 0, or where memory does not begin on a page at the offset in its
	 * page: the kernel maps whole pages, so that iova and address must agree
	 * modulo the page (ib_umem_get()). pier_mr_iova() tells.
	 */
	PIER_ADDRESSING_ZERO_BASED = 1,
	/** At `iova`, which must agree with the address modulo the page. */
	PIER_ADDRESSING_IOVA = 2,
};

/** Where a region may consist of several parts. */
enum pier_split {
	/** Between ranges, where the device has no key for all of them. */
	PIER_SPLIT_SEAMS = 0,
	/**
	 * Also within a range that is longer than the device's max_mr_size, or
	 * that is refused with -ENOMEM: it is tried in smaller pieces.
	 */
	PIER_SPLIT_PIECES = 1,
	/** Nowhere: one key, or -EOPNOTSUPP. */
	PIER_SPLIT_NEVER = 2,
};

/** Parts that a region can have, and ranges that it can be made of. */
#define PIER_MR_PARTS_MAX 1024

/** How a region is made. Begin with pier_mr_attr_init(). */
struct pier_mr_attr {
	/** sizeof(struct pier_mr_attr), so that fields can be added. */
	size_t size;
	/** The memory, in the order of the region's addresses; borrowed. */
	const struct pier_mr_range *ranges;
	uint32_t range_count; /**< 1 to PIER_MR_PARTS_MAX */
	int access;	      /**< enum pier_access, ored */
	enum pier_addressing addressing;
	enum pier_policy policy; /**< of buffers and pointers */
	enum pier_split split;
	/**
	 * The key that peers are to use, from 1 to the device's max_requested_key;
	 * 0: the device chooses.
	 */
	uint32_t requested_key;
	uint64_t iova; /**< with PIER_ADDRESSING_IOVA */
	/**
	 * A hint: the memory's pages are as large as this, a power of two and not
	 * less than the host's page; 0: no hint. Addresses are then made, or a
	 * chosen iova must be, such that they agree modulo this, without which a
	 * NIC cannot use large pages (ib_umem_find_best_pgsz() in the kernel).
	 */
	uint64_t page_size;
	void *context; /**< given back by pier_mr_context() */
	/**
	 * Of dma-bufs that backends make: the one that the device takes. By
	 * PIER_MAPPING_AUTO the one that it took last time, and then the other.
	 */
	enum pier_mapping mapping;
	uint32_t reserved; /**< 0 */
};

/**
 * Set every field to its default: no range yet, local reading, direct paths, the device's
 * own key. Cannot fail.
 */
static inline void pier_mr_attr_init(struct pier_mr_attr *attr)
{
	memset(attr, 0, sizeof(*attr));
	attr->size = sizeof(*attr);
	attr->addressing = PIER_ADDRESSING_VIRTUAL;
	attr->policy = PIER_POLICY_DIRECT;
	attr->split = PIER_SPLIT_SEAMS;
	attr->mapping = PIER_MAPPING_AUTO;
}

/**
 * Register memory by attributes: what all other calls that register come to.
 *
 * Several ranges follow each other in one address space, whatever they are. They
 * get one key where the device joins them itself (soft0), or where they are whole
 * pages of memfd buffers, the device takes dma-bufs and /dev/udmabuf can join
 * memfds. Otherwise each is a part of the region, as far as `split` allows.
 *
 * Errors: -EINVAL size, a source, addressing, policy, split, page_size or access
 * that is not possible, no range or more than PIER_MR_PARTS_MAX, an empty range, an
 * iova that does not agree with the address, or a sum past 64 bits; -ENOKEY the
 * requested key is in use; -EKEYREJECTED it is above the device's
 * max_requested_key, or the device chooses all keys; -EOPNOTSUPP an access that the
 * device does not have, no path that the policy accepts, or more parts than
 * `split` allows; -E2BIG longer than max_mr_size, or in more pieces than
 * PIER_MR_PARTS_MAX; -ERANGE outside its buffer or allocation; -EBADF, -EFAULT,
 * -ENOMEM, -EPERM and others as of pier_reg_mr(), pier_reg_dmabuf_mr(),
 * pier_reg_buffer_mr() and pier_buffer_wrap(). Nothing stays registered.
 */
PIER_API int pier_reg_mr_attr(struct pier_pd *pd, const struct pier_mr_attr *attr,
			      struct pier_mr **ret_mr);

/**
 * Register ranges as one region, at the address of the first: pier_reg_mr_attr()
 * with direct paths and parts for ranges.
 *
 * Errors: those of pier_reg_mr_attr().
 */
PIER_API int pier_reg_mr_vec(struct pier_pd *pd, const struct pier_mr_range *ranges,
			     uint32_t range_count, int access, struct pier_mr **ret_mr);

/**
 * Register [offset, offset + length) of a region once more, with rights of its
 * own: a sub-region, whose addresses are those of the region and whose keys are
 * not. A peer that is told of it can use it as its access says and no more.
 *
 * The region is kept: deregistering it is -EBUSY while it has sub-regions. A
 * sub-region may have sub-regions. See also pier_bind_sub_mr(), which uses a memory
 * window where there are some.
 *
 * Errors: -ERANGE the part leaves the region; -EOPNOTSUPP the part lies in a
 * dma-buf that was given as an fd, of which the region keeps none: register the
 * part from the fd; -EINVAL length 0, or the region is a memory window; others of
 * pier_reg_mr_attr().
 */
PIER_API int pier_reg_sub_mr(struct pier_mr *mr, uint64_t offset, uint64_t length,
			     int access, struct pier_mr **ret_mr);

/**
 * Deregister; NULL is fine. Afterwards the NIC does not touch the memory.
 *
 * A request of a channel keeps the regions of its elements from being posted until
 * it was collected, which pier_work_poll() and pier_work_wait() do, and for requests
 * that nobody asks for pier_channel_poll(); or until its channel is destroyed. It does
 * not keep those of elements of length 0, nor of data that was sent inline. What peers do
 * with the region is not known here: their later requests fail.
 *
 * Errors: -EBUSY a request is outstanding on it, or complete and not collected,
 * whose kind the sentence names, it has sub-regions, or something is bound to it;
 * nothing was changed. -EINVAL it is a registration cache's (<pier/cache.h>); -ECHILD
 * it is the parent's; others of ibv_dereg_mr(3), after
 * which the region can only be deregistered again.
 */
PIER_API int pier_dereg_mr(struct pier_mr *mr);

/**
 * What a region is; none of these can fail. The keys are those of its first part. A
 * memory window has no lkey: 0. Its path is that of the region it is bound to.
 */
PIER_API uint64_t pier_mr_iova(const struct pier_mr *mr);
PIER_API size_t pier_mr_length(const struct pier_mr *mr);
PIER_API uint32_t pier_mr_lkey(const struct pier_mr *mr);
PIER_API uint32_t pier_mr_rkey(const struct pier_mr *mr);
PIER_API int pier_mr_access(const struct pier_mr *mr);
PIER_API enum pier_path pier_mr_path(const struct pier_mr *mr);

/**
 * Why the region has no better path: what was tried before and how each failed; "" where
 * the memory's own path was taken. Of several parts, the first that has a reason. Valid
 * as long as the region. Cannot fail.
 */
PIER_API const char *pier_mr_reason(const struct pier_mr *mr);

/**
 * The mapping of the dma-buf that it was registered by, or PIER_MAPPING_AUTO where its
 * backend has no choice or it is on no dma-buf of a backend's. Cannot fail.
 */
PIER_API enum pier_mapping pier_mr_mapping(const struct pier_mr *mr);

/** Whether a region is a memory window: see pier_bind_sub_mr(). Cannot fail. */
PIER_API bool pier_mr_is_window(const struct pier_mr *mr);

/** What attr.context was; NULL for regions that were made without. */
PIER_API void *pier_mr_context(const struct pier_mr *mr);

/** The protection domain that it is in. */
PIER_API struct pier_pd *pier_mr_pd(const struct pier_mr *mr);

/** A part of a region: what one pair of keys is for. */
struct pier_mr_part_info {
	uint64_t offset; /**< of its first byte in the region */
	uint64_t length; /**< in bytes */
	uint64_t iova;	 /**< where its own addresses begin */
	uint32_t lkey;
	uint32_t rkey;
	enum pier_path path;
};

/** How many parts a region has: 1 or more. */
PIER_API uint32_t pier_mr_parts(const struct pier_mr *mr);

/**
 * Describe a part, counted from 0.
 *
 * Errors: -ERANGE there is no such part.
 */
PIER_API int pier_mr_part(const struct pier_mr *mr, uint32_t index,
			  struct pier_mr_part_info *ret_part);

/**
 * Whether [addr, addr + length), in the region's iovas, lies in the region. A
 * length of 0 does from the first address to one past the last.
 */
PIER_API bool pier_mr_encloses(const struct pier_mr *mr, uint64_t addr, uint64_t length);

PIER_END_DECLS

#endif
