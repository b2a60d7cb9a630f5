/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BUFFER_H
#define PIER_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <pier/export.h>

PIER_BEGIN_DECLS

/**
 * Buffers: memory from an allocator backend.
 *
 * A spec, "NAME" or "NAME:UNIT", selects a backend. The meaning of the unit depends on
 * the backend. Examples: "host", "host:huge", "memfd", "memfd:readonly", "udmabuf",
 * "dma_heap:system", "cuda:1". pier_backend_list() reports which backends work on this
 * machine, and why others do not.
 *
 * Only the CPU of this process can write "memfd:readonly"; other processes can read it if
 * they get its fd (F_SEAL_FUTURE_WRITE in fcntl(2), Linux 5.1). soft0 uses that fd for
 * regions without PIER_ACCESS_LOCAL_WRITE; others are registered as host memory.
 *
 * Threads: any thread may call any function. A buffer must not be freed while another
 * thread uses it.
 *
 * Processes: a child of fork(2) inherits the buffers of its parent. Memory of the
 * backend "host" is copied; memory of memfd, udmabuf and dma_heap is shared with the
 * parent; for other backends, see their documentation. The child may use and free these
 * buffers. Freeing removes only the child's own mapping and descriptors; the parent's
 * buffers are unaffected. A buffer that had regions at the time of the fork cannot be
 * freed in the child (-EBUSY); it lasts until the child exits.
 */

struct pier_buffer;
struct pier_copy;
struct pier_device;

/** One entry of pier_backend_list(). */
struct pier_backend_info {
	char name[32];	      /**< the NAME of a spec */
	char description[96]; /**< a description of its memory */
	bool available;	      /**< whether it can allocate on this machine */
	bool dmabuf;	      /**< whether its memory can be exported as a dma-buf */
	/**
	 * If the backend is not available, the reason; otherwise its limits. May be
	 * empty.
	 */
	char detail[256];
	/** The shared object from which it was loaded; "" if it is built in. */
	char origin[256];
};

/**
 * How a dma-buf of device memory is mapped for the device that imports it. Some NICs
 * can use only one of these mappings, some only the other
 * (CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE in CUDA 12.8,
 * HSA_AMD_DMABUF_MAPPING_TYPE_PCIE in ROCm 6.4).
 */
enum pier_mapping {
	/**
	 * For registrations: the mapping that last worked for the NIC and the device, or
	 * the one that the topology demands or the backend prefers.
	 */
	PIER_MAPPING_AUTO = 0,
	/** The driver's choice: over NVLink-C2C if available. */
	PIER_MAPPING_DEFAULT = 1,
	/** Over PCIe. */
	PIER_MAPPING_PCIE = 2,
};

/**
 * Return the name of a mapping: "auto", "default" or "pcie"; "unknown" for any other
 * value. Cannot fail.
 */
PIER_API const char *pier_mapping_name(enum pier_mapping mapping);

/** A description of a buffer's memory. */
struct pier_buffer_info {
	char backend[32]; /**< the NAME of a spec */
	char unit[32];	  /**< the UNIT that holds it: "0"; "" if there are none */
	char kind[48];	  /**< "cuMemAlloc", "managed memory"; "" if unknown */
	/**
	 * Why the memory cannot be exported as a dma-buf, and the remedy; "" if it can,
	 * or if only its driver knows.
	 */
	char no_export[256];
	char pci[16];		    /**< its PCI address, "0000:17:00.0"; or "" */
	int numa_node;		    /**< -1 if unknown */
	bool mappable;		    /**< whether pier_buffer_map() works */
	bool wrapped;		    /**< whether the memory belongs to the caller */
	uint64_t allocation;	    /**< address of the allocation that contains it */
	uint64_t allocation_length; /**< in bytes */
};

/**
 * A dma-buf of a range of a buffer. Frozen: pier_dmabuf_close() reads it again, and
 * `owner` refers to whatever else the library needs.
 *
 * `offset` and `iova` are equal modulo the page size, as the kernel requires
 * (ib_umem_dmabuf_get() and the check before it in uverbs).
 */
struct pier_dmabuf {
	int fd;		   /**< close-on-exec; -1 if there is none */
	uint64_t offset;   /**< of the range's first byte in the dma-buf, in bytes */
	uint64_t length;   /**< of the range, in bytes */
	uint64_t iova;	   /**< the range's address, for the registration */
	const void *owner; /**< private to the library; do not change */
};

/**
 * List the allocator backends. The built-in ones come first, then those found in the
 * directories of the environment variable PIER_BACKEND_PATH. The directories are
 * separated by colons, and the library tries each *.so file in them. A file that cannot
 * be loaded is listed as not available, with the reason.
 *
 * ret_list   the list, from malloc(3); free it with free(3)
 * ret_count  its length
 * size       sizeof(**ret_list) in the caller
 *
 * Errors: -ENOMEM.
 */
PIER_API int pier_backend_list(struct pier_backend_info **ret_list, uint32_t *ret_count,
			       size_t size);

/**
 * Do now what the first use of a unit would do, and what may wait for other threads: open
 * its driver, create or retain its context, and set the context up.
 *
 * Call it for each GPU at the start of a program, before another thread launches kernels.
 * Setting up a CUDA context (CU_CTX_SYNC_MEMOPS) takes a lock that cudaLaunchKernel()
 * of another thread may hold for as long as its queue is full; if the kernels in that
 * queue wait for this thread, both wait forever (seen in openucx/ucx, pull requests
 * 10599 and 11705). After a warm-up, registrations and copies do not take that lock
 * for memory of the unit's primary context, which the CUDA runtime and PyTorch use,
 * and of the calling thread's current context.
 *
 * For HIP it starts the runtime and makes pier's stream on the device.
 *
 * A warm-up does not send the canary (PIER_CANARY in pier(1)), because it does not know
 * the NIC. The first registration of a unit's memory on a NIC does: it allocates memory
 * of the unit, which can wait for running kernels, and keeps it until the device is
 * closed, because freeing it would wait. If a kernel may wait for this process, register
 * once before it is launched, or switch the canary off.
 *
 * spec  "NAME" or "NAME:UNIT", as for pier_buffer_alloc(): "cuda:0". Backends that have
 *       nothing to prepare do nothing.
 *
 * Any thread; again at any time.
 *
 * Errors: those of pier_buffer_alloc(), except for the length.
 */
PIER_API int pier_backend_warm_up(const char *spec);

/**
 * Allocate a buffer from the backend that `spec` selects.
 *
 * spec    "NAME" or "NAME:UNIT"
 * length  in bytes, more than 0
 *
 * The memory is zeroed. The allocation may be larger than `length`, to fill whole
 * pages; the caller must not use the remainder. Free the buffer with
 * pier_buffer_free().
 *
 * Errors: -EINVAL length is 0, the spec is malformed, or the unit is unknown; -ENOENT
 * there is no such backend (pier_error_message() lists those that exist); -EOPNOTSUPP
 * the backend does not work on this machine (pier_error_message() gives the reason);
 * -ENOMEM; -E2BIG length exceeds a limit of the backend, which pier_error_message()
 * names; others of the backend's system calls.
 */
PIER_API int pier_buffer_alloc(const char *spec, uint64_t length,
			       struct pier_buffer **ret_buffer);

/**
 * Allocate a buffer in the memory of a NIC (ibv_alloc_dm(3)). Peers and the NIC reach
 * such memory without crossing PCIe on this host. There is little of it.
 *
 * Regions of the same device (the handle, not the NIC) are registered by
 * ibv_reg_dm_mr(3); their path is PIER_PATH_NIC. The addresses of such a key begin at 0
 * for the region's first byte: those in elements, remote addresses and
 * pier_mr_part(), not pier_mr_iova(). Memory windows and PIER_ACCESS_ON_DEMAND are
 * -EINVAL.
 *
 * Other devices register a dma-buf of the memory (ibv_dm_export_dmabuf_fd(3), rdma-core
 * 62), and so does the same device if a key is requested or there is a TPH hint. Where
 * the dma-buf cannot be had, PIER_POLICY_BOUNCE still registers the memory.
 *
 * The CPU cannot map the memory: copy instead. pier_buffer_address() is an address that
 * no other memory of this process has, and that nothing can read. mlx5 copies words of 4
 * bytes: a copy that begins or ends inside a word reads the word and writes all of it, so
 * it undoes what the NIC or another thread writes to its other bytes meanwhile.
 *
 * device  keeps the memory; it cannot be closed before the buffer is freed
 * length  in bytes, more than 0
 *
 * The memory is zeroed, and rounded up to whole pages. In a child of fork(2), copies fail
 * with -ECHILD, and freeing the buffer leaves the memory to the parent.
 *
 * Errors: -EOPNOTSUPP the device has no memory for programs, or its driver has no copies
 * (MANA); -ENOMEM; -EINVAL length is 0, or the driver refuses it; -ECHILD the device
 * belongs to the parent process; others of ibv_alloc_dm(3).
 */
PIER_API int pier_buffer_alloc_on_nic(struct pier_device *device, uint64_t length,
				      struct pier_buffer **ret_buffer);

/**
 * Make a buffer of memory that the caller already has. The caller keeps ownership of
 * the memory. The library asks each backend whether it owns the memory, and treats
 * memory that no backend owns as host memory.
 *
 * addr, length  [addr, addr + length) must stay valid until pier_buffer_free(), which
 *               does not free it. A range inside another buffer of the built-in
 *               backends memfd, udmabuf or dma_heap stays valid by itself: its memory
 *               is freed when both buffers have been freed.
 *
 * Errors: -EINVAL length is 0, or the range exceeds the address space; -ERANGE the range
 * starts inside an allocation of a backend and ends outside it; -ENOMEM; others of a
 * backend that was asked.
 */
PIER_API int pier_buffer_wrap(void *addr, uint64_t length,
			      struct pier_buffer **ret_buffer);

/**
 * Make a buffer of a range of a dma-buf from another library, driver or process. The
 * range is registered as a dma-buf (ibv_reg_dmabuf_mr(3)), at an iova that equals its
 * offset modulo the page size, as the kernel requires. The buffer can be mapped if the
 * dma-buf supports mmap(2) for reading and writing; otherwise its address is only
 * reserved. The library brackets its copies with DMA_BUF_IOCTL_SYNC.
 *
 * A memfd is accepted as well; the buffer's memory is then memory of the backend
 * "memfd". The caller must not shrink the memfd while it is wrapped.
 *
 * fd              borrowed; the buffer holds a duplicate, which keeps the dma-buf's
 *                 memory
 * offset, length  in bytes, of any alignment
 *
 * Errors: -EBADF fd is not open; -EINVAL fd is neither a dma-buf nor a memfd, or length
 * is 0; -ERANGE the range exceeds the dma-buf, whose size lseek(2) reports; -EMFILE;
 * -ENOMEM.
 */
PIER_API int pier_buffer_wrap_dmabuf(int fd, uint64_t offset, uint64_t length,
				     struct pier_buffer **ret_buffer);

/**
 * Free a buffer and, unless it was wrapped, its memory. NULL is allowed.
 *
 * Idle regions of a registration cache on this memory are deregistered first. Other
 * regions of wrapped memory, which the cache did not get for this buffer, stay, or no
 * longer keep the memory.
 *
 * Errors: -EBUSY the buffer still has registered regions, regions in use from a
 * registration cache, exported dma-bufs that are not closed, or started copies that were
 * not freed, or another thread has been deregistering one of the cached regions for
 * 30 s; the buffer was not changed.
 */
PIER_API int pier_buffer_free(struct pier_buffer *buffer);

/**
 * Return the address of the first byte of a buffer. This is a host pointer for host
 * memory, and the device's own address for device memory. Never 0. Cannot fail.
 */
PIER_API uint64_t pier_buffer_address(const struct pier_buffer *buffer);

/** Return the length that the caller requested, in bytes. Cannot fail. */
PIER_API uint64_t pier_buffer_length(const struct pier_buffer *buffer);

/**
 * Describe a buffer's memory: its kind, whether it can be exported, and which device
 * holds it.
 *
 * ret_info  written up to `size` bytes
 * size      sizeof(*ret_info) in the caller
 *
 * Errors: those of a backend that cannot determine where its memory is.
 */
PIER_API int pier_buffer_query(const struct pier_buffer *buffer,
			       struct pier_buffer_info *ret_info, size_t size);

/**
 * Return a pointer through which ordinary instructions read and write the buffer. Every
 * call returns the same pointer, which is valid until the buffer is freed.
 *
 * On machines whose devices are not coherent with the CPU's caches (x86-64 is not one
 * of them), memory of dma_heap and udmabuf also needs DMA_BUF_IOCTL_SYNC around each
 * access. The copy functions below issue it.
 *
 * Errors: -EOPNOTSUPP the CPU cannot reach this memory; use pier_buffer_copy_to() and
 * pier_buffer_copy_from().
 */
PIER_API int pier_buffer_map(struct pier_buffer *buffer, void **ret_pointer);

/**
 * Copy bytes from host memory into a buffer, or from a buffer to host memory.
 *
 * offset  in the buffer, in bytes
 * length  in bytes; 0 does nothing
 *
 * The copy is complete when the call returns. These functions do not wait for device
 * code that accesses the same bytes: wait for its stream first.
 *
 * Errors: -ERANGE [offset, offset + length) is not inside the buffer; -EOPNOTSUPP the
 * backend cannot copy; those of the backend.
 */
PIER_API int pier_buffer_copy_to(struct pier_buffer *buffer, uint64_t offset,
				 const void *source, uint64_t length);
PIER_API int pier_buffer_copy_from(struct pier_buffer *buffer, uint64_t offset,
				   void *destination, uint64_t length);

/**
 * Start a copy of `length` bytes as pier_buffer_copy_to() or pier_buffer_copy_from()
 * makes it, and return before it is done if the backend can do that (`copy_start` in
 * <pier/backend.h>; cuda and hip can). Other backends finish the copy first.
 *
 * Only copies of device memory from and to page-locked host memory continue in the
 * background. Page-locked are buffers of "cuda:N:host" and "hip:N:host", and what
 * cuMemHostRegister() or hipHostRegister() locked. For other host memory, CUDA returns
 * when it has staged the bytes, or when a copy to the host is done ("API synchronization
 * behavior" in the CUDA driver API reference), and hipMemcpyAsync() returns when the copy
 * is done. If pier_buffer_map() can map the buffer, the CPU waits for the stream and
 * copies before this function returns.
 *
 * The buffer cannot be freed until pier_copy_free() has freed the copy.
 *
 * source       host memory; the caller must not change it until the copy is done
 * destination  host memory; the caller must not access it until the copy is done
 * stream       a CUstream of the memory's context, or a hipStream_t of its device, not
 *              being captured. The copy runs after all work that is in the stream, and
 *              before work that is put into it later. Use CU_STREAM_LEGACY or
 *              hipStreamLegacy for the default stream. NULL: a stream of pier's own; the
 *              copy does not wait for the caller's work.
 * ret_copy     free it with pier_copy_free()
 *
 * Errors: those of pier_buffer_copy_to(); -EOPNOTSUPP also if `stream` is not NULL and
 * the backend has no streams; -ENOMEM. After an error, no part of the copy is running.
 */
PIER_API int pier_buffer_copy_start_to(struct pier_buffer *buffer, uint64_t offset,
				       const void *source, uint64_t length, void *stream,
				       struct pier_copy **ret_copy);
PIER_API int pier_buffer_copy_start_from(struct pier_buffer *buffer, uint64_t offset,
					 void *destination, uint64_t length, void *stream,
					 struct pier_copy **ret_copy);

/**
 * Wait until a copy is done or has failed. May be called again after any result. Only
 * one thread at a time may use a copy.
 *
 * timeout_ms  in milliseconds; 0: check once; PIER_TIMEOUT_DEFAULT (<pier/channel.h>):
 *             30 s
 *
 * Returns 1 if the copy is done, or 0 if it is still running and timeout_ms is 0.
 *
 * Errors: -ETIMEDOUT the copy was not done in time, and continues; those of the
 * backend: the copy failed, and no part of it is running; -EINVAL timeout_ms is
 * invalid; -EINTR (<pier/waiting.h>); -ECHILD this process is a child of the one that
 * started the copy.
 */
PIER_API int pier_copy_wait(struct pier_copy *copy, int timeout_ms);

/**
 * Free a copy that is done or has failed. NULL is allowed. A copy in a stream cannot be
 * stopped, and the device accesses both memories until it ends; so wait for it first.
 *
 * Errors: -EBUSY the copy is still running; nothing was changed. -ECHILD as for
 * pier_copy_wait().
 */
PIER_API int pier_copy_free(struct pier_copy *copy);

/**
 * Export [offset, offset + length) of a buffer as a dma-buf.
 *
 * offset      in the buffer, in bytes
 * length      in bytes, more than 0
 * mapping     PIER_MAPPING_AUTO selects the default one
 * ret_dmabuf  the dma-buf; close it with pier_dmabuf_close()
 *
 * The dma-buf covers whole host pages; ret_dmabuf gives the range's offset in it. Close
 * the dma-buf before you free the buffer. A memory region registered from it holds its
 * own reference, so close it as soon as the registration has returned, with or without
 * an error.
 *
 * For memory of the backend "memfd" the fd is the memfd itself, which only soft0
 * accepts as a dma-buf.
 *
 * Errors: -ERANGE the range is not inside the buffer; -EINVAL length is 0, or mapping is
 * not in enum pier_mapping; -EOPNOTSUPP this memory cannot be exported, or the driver
 * does not support this mapping; -EXDEV the range lies in several allocations of the
 * driver, and each has a dma-buf of its own: export their parts; -ENOMEM; those of the
 * backend (-EMFILE).
 */
PIER_API int pier_dmabuf_export(struct pier_buffer *buffer, uint64_t offset,
				uint64_t length, enum pier_mapping mapping,
				struct pier_dmabuf *ret_dmabuf);

/** Close an exported dma-buf and set its fd to -1. A dma-buf with fd -1 is allowed. */
PIER_API void pier_dmabuf_close(struct pier_dmabuf *dmabuf);

PIER_END_DECLS

#endif
