/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_MR_H
#define PIER_MR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
 * the kernel's errno, and pier_last_error() names the value and the rule. The
 * kernel may still refuse what passed: its errno is then returned as it is.
 *
 * Threads: any thread may call any function; a region must not be deregistered
 * while another thread uses it or requests on it are outstanding.
 */

struct pier_mr;

/**
 * What may be done with a region, ored together. Names and values are those of
 * enum ibv_access_flags. Local reading is always allowed. REMOTE_WRITE and
 * REMOTE_ATOMIC need LOCAL_WRITE (ibv_reg_mr(3)).
 */
enum pier_access {
	PIER_ACCESS_LOCAL_READ = 0,
	PIER_ACCESS_LOCAL_WRITE = 1,
	PIER_ACCESS_REMOTE_WRITE = 1 << 1,
	PIER_ACCESS_REMOTE_READ = 1 << 2,
	PIER_ACCESS_REMOTE_ATOMIC = 1 << 3,
	PIER_ACCESS_RELAXED_ORDERING = 1 << 20,
	/** Local write, remote read and remote write. */
	PIER_ACCESS_SHARED = 1 | (1 << 1) | (1 << 2),
};

/** The way by which the NIC reaches a region's memory. */
enum pier_path {
	PIER_PATH_HOST = 1,    /**< host memory: ibv_reg_mr(3) on CPU pages */
	PIER_PATH_DMABUF = 2,  /**< a dma-buf: ibv_reg_dmabuf_mr(3) */
	PIER_PATH_PEERMEM = 3, /**< ibv_reg_mr(3) on a device pointer */
	PIER_PATH_STAGED = 4,  /**< through host memory that bytes are copied to */
};

/** "host", "dma-buf", "peermem" or "staged"; "unknown" for anything else. */
PIER_API const char *pier_path_name(enum pier_path path);

/** Which paths the caller accepts for a buffer. */
enum pier_policy {
	/**
	 * Only the one that the memory is made for: a dma-buf if its backend
	 * exports dma-bufs, host memory if it does not.
	 */
	PIER_POLICY_DIRECT = 0,
	/**
	 * Where that one does not work, others that do; the region tells which
	 * with pier_mr_path(), and the log says why.
	 */
	PIER_POLICY_ANY = 1,
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

/**
 * Deregister; NULL is fine. Afterwards the NIC does not touch the memory.
 *
 * Errors: -EBUSY something is bound to it, and nothing was changed; others of
 * ibv_dereg_mr(3).
 */
PIER_API int pier_dereg_mr(struct pier_mr *mr);

/** What a region is; none of these can fail. */
PIER_API uint64_t pier_mr_iova(const struct pier_mr *mr);
PIER_API size_t pier_mr_length(const struct pier_mr *mr);
PIER_API uint32_t pier_mr_lkey(const struct pier_mr *mr);
PIER_API uint32_t pier_mr_rkey(const struct pier_mr *mr);
PIER_API int pier_mr_access(const struct pier_mr *mr);
PIER_API enum pier_path pier_mr_path(const struct pier_mr *mr);

/**
 * Whether [addr, addr + length), in the region's iovas, lies in the region. A
 * length of 0 does from the first address to one past the last.
 */
PIER_API bool pier_mr_encloses(const struct pier_mr *mr, uint64_t addr, uint64_t length);

PIER_END_DECLS

#endif
