/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BUFFER_H
#define PIER_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <pier/export.h>

PIER_BEGIN_DECLS

/**
 * Buffers: pieces of memory that came from an allocator backend.
 *
 * Which backend is said by a spec, "NAME" or "NAME:UNIT", where the unit is the
 * backend's own: "host", "host:huge", "memfd", "udmabuf", "dma_heap:system", "cuda:1".
 * pier_backend_list() tells which work here, and why others do not.
 *
 * Threads: any thread may call any function; one buffer must not be freed
 * while another thread uses it.
 *
 * Processes: a child of fork(2) has its parent's buffers too. Memory of the backend
 * "host" is a copy there, that of memfd, udmabuf and dma_heap is shared with the
 * parent; that of a backend from elsewhere is as its documentation says. The child
 * may use them all, and free them, which takes away its own mapping and
 * descriptors and nothing of the parent's. A buffer that had regions at the fork
 * cannot be freed in the child (-EBUSY), and goes with it.
 */

struct pier_buffer;
struct pier_copy;

/** One entry of pier_backend_list(). */
struct pier_backend_info {
	char name[32];	      /**< the NAME of a spec */
	char description[96]; /**< what its memory is */
	bool available;	      /**< whether it can allocate here */
	bool dmabuf;	      /**< whether its memory can be exported as a dma-buf */
	/** Why it is not available, or else its limits; may be empty. */
	char detail[256];
	/** The shared object it was loaded from; "" for one that is built in. */
	char origin[256];
};

/**
 * How a dma-buf of device memory is mapped for who imports it: some NICs can use one,
 * some the other (CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE in CUDA 12.8,
 * HSA_AMD_DMABUF_MAPPING_TYPE_PCIE in ROCm 6.4).
 */
enum pier_mapping {
	/** Of registrations: what the NIC is known to take, or else the default. */
	PIER_MAPPING_AUTO = 0,
	/** As the driver thinks best: over NVLink-C2C where there is that. */
	PIER_MAPPING_DEFAULT = 1,
	/** Over PCIe. */
	PIER_MAPPING_PCIE = 2,
};

/** "auto", "default" or "pcie"; "unknown" for another. */
PIER_API const char *pier_mapping_name(enum pier_mapping mapping);

/** What a buffer's memory is. */
struct pier_buffer_info {
	char backend[32]; /**< the NAME of a spec */
	char unit[32];	  /**< the UNIT that has it: "0"; "" where there are none */
	char kind[48];	  /**< "cuMemAlloc", "managed memory"; "" unknown */
	/** Why it cannot be exported as a dma-buf, and the way out; "": it can. */
	char no_export[256];
	char pci[16];	     /**< PCI address of what has it, "0000:17:00.0"; "" none */
	int numa_node;	     /**< or -1 */
	bool mappable;	     /**< pier_buffer_map() works */
	bool wrapped;	     /**< the memory is the caller's */
	uint64_t allocation; /**< address of the allocation around it */
	uint64_t allocation_length; /**< in bytes */
};

/**
 * A dma-buf that covers a piece of a buffer.
 *
 * The kernel wants `offset` and `iova` to agree modulo the page
 * (ib_umem_dmabuf_get() and the check before it in uverbs), which they do here.
 */
struct pier_dmabuf {
	int fd;		   /**< close-on-exec; -1 when there is none */
	uint64_t offset;   /**< of the piece's first byte in the dma-buf */
	uint64_t length;   /**< of the piece, in bytes */
	uint64_t iova;	   /**< the piece's address: what to register it at */
	const void *owner; /**< the library's; do not touch */
};

/**
 * List the allocator backends: those that are built in, then those found in
 * the directories that the environment variable PIER_BACKEND_PATH names
 * (separated by colons; each *.so in them is tried). An object that cannot be
 * loaded is listed as not available with the reason.
 *
 * ret_list   the caller's, to be given to pier_backend_list_free()
 * ret_count  its length
 *
 * Errors: -ENOMEM.
 */
PIER_API int pier_backend_list(struct pier_backend_info **ret_list, size_t *ret_count);

/** Free what pier_backend_list() gave; NULL is fine. */
PIER_API void pier_backend_list_free(struct pier_backend_info *list);

/**
 * Allocate `length` bytes from the backend that `spec` names.
 *
 * The memory reads as zero. It may be larger than `length` (whole pages); the
 * rest is not the caller's.
 *
 * Errors: -EINVAL length 0, malformed spec or unknown unit; -ENOENT no such
 * backend (the sentence lists those that exist); -EOPNOTSUPP the backend does
 * not work here (the sentence says why); -ENOMEM; -E2BIG beyond a limit of the
 * backend, which the sentence names; others of the backend's system calls.
 */
PIER_API int pier_buffer_alloc(const char *spec, size_t length,
			       struct pier_buffer **ret_buffer);

/**
 * Make a buffer of memory that the caller already has and keeps. The owner is
 * found by asking the backends; memory that none of them owns is treated as
 * host memory.
 *
 * addr, length  [addr, addr + length) stays valid until pier_buffer_free(),
 *               which does not free it. Inside another buffer of the built-in
 *               backends memfd, udmabuf and dma_heap it stays valid by itself:
 *               that memory goes when both buffers are freed.
 *
 * Errors: -EINVAL addr NULL, length 0 or past the end of the address space;
 * -ERANGE the range starts in an allocation of a backend and leaves it;
 * -ENOMEM; others of a backend that was asked.
 */
PIER_API int pier_buffer_wrap(void *addr, size_t length, struct pier_buffer **ret_buffer);

/**
 * Make a buffer of a range of a dma-buf that the caller has, from another library, driver
 * or process. It is registered as a dma-buf (ibv_reg_dmabuf_mr()), at an iova that agrees
 * with its offset modulo the page, as the kernel demands. The buffer can be mapped if
 * mmap(2) of the dma-buf works for reading and writing; its address is reserved if not.
 * The library brackets its copies with DMA_BUF_IOCTL_SYNC.
 *
 * A memfd works as well; it then is memory of the backend "memfd". The caller must not
 * shrink it while it is wrapped.
 *
 * fd              borrowed: the buffer has a duplicate, which keeps the dma-buf's memory
 * offset, length  in bytes, of any alignment
 *
 * Errors: -EBADF fd is not open; -EINVAL fd is neither a dma-buf nor a memfd, or length
 * is 0; -ERANGE the range leaves the dma-buf, whose size lseek(2) reports; -EMFILE;
 * -ENOMEM.
 */
PIER_API int pier_buffer_wrap_dmabuf(int fd, uint64_t offset, size_t length,
				     struct pier_buffer **ret_buffer);

/**
 * Free a buffer and, unless it was wrapped, its memory; NULL is fine.
 *
 * Regions of its memory that a registration cache only keeps are deregistered
 * first.
 *
 * Errors: -EBUSY memory regions of it are registered, one is handed out by a
 * registration cache, exported dma-bufs are not closed, or started copies were not
 * waited for; nothing was changed.
 * -ETIMEDOUT another thread has been deregistering one of them for 30 s.
 */
PIER_API int pier_buffer_free(struct pier_buffer *buffer);

/**
 * The address of the first byte: a host pointer for host memory, the device's
 * own address for device memory. Never 0. Cannot fail.
 */
PIER_API uint64_t pier_buffer_address(const struct pier_buffer *buffer);

/** The length that was asked for, in bytes. Cannot fail. */
PIER_API size_t pier_buffer_length(const struct pier_buffer *buffer);

/** The name of the backend; valid as long as the buffer. Cannot fail. */
PIER_API const char *pier_buffer_backend(const struct pier_buffer *buffer);

/**
 * Tell what a buffer's memory is: its kind, whether it can be exported, and what
 * hardware has it.
 *
 * Errors: those of a backend that cannot tell where its memory is.
 */
PIER_API int pier_buffer_query(const struct pier_buffer *buffer,
			       struct pier_buffer_info *ret_info);

/**
 * Where the CPU can read and write the buffer with ordinary instructions; the
 * same pointer every time, valid until the buffer is freed.
 *
 * Where devices are not coherent with the CPU's caches (not so on x86-64),
 * memory of dma_heap and udmabuf needs more than ordinary instructions
 * (DMA_BUF_IOCTL_SYNC), which the copy functions do.
 *
 * Errors: -EOPNOTSUPP the CPU cannot reach this memory: use
 * pier_buffer_copy_to() and pier_buffer_copy_from().
 */
PIER_API int pier_buffer_map(struct pier_buffer *buffer, void **ret_pointer);

/**
 * Copy `length` bytes from host memory into the buffer at `offset`, or from
 * there to host memory. Length 0 does nothing. On return the bytes are there.
 * Device code that writes the same bytes, or is to be done with them, is not
 * waited for: the caller waits for its stream first.
 *
 * Errors: -ERANGE [offset, offset + length) is not inside the buffer;
 * -EOPNOTSUPP the backend has no way to copy; those of the backend.
 */
PIER_API int pier_buffer_copy_to(struct pier_buffer *buffer, size_t offset,
				 const void *source, size_t length);
PIER_API int pier_buffer_copy_from(struct pier_buffer *buffer, size_t offset,
				   void *destination, size_t length);

/**
 * Start such a copy, and return without waiting for it where the backend can do so
 * (`copy_start` in <pier/backend.h>; of the built-in ones cuda and hip). The others copy
 * before this returns.
 *
 * Only page-locked host memory is copied while the program runs on. From other memory
 * CUDA takes the bytes first, and to other memory it returns when the copy is done ("API
 * synchronization behavior" in its reference). Memory of cuda and hip that
 * pier_buffer_map() can map is copied by the CPU, here, after waiting for the stream.
 *
 * The copy is a child of the buffer, which cannot be freed until pier_copy_wait().
 *
 * source, destination  valid until the copy is done; not to be written, or not to be
 *                      accessed, until then
 * stream               the copy begins after all work that is in it, and work that is
 *                      put into it later begins after the copy. A CUstream of the context
 *                      or a hipStream_t of the device that the memory belongs to, which
 *                      is not being captured; CU_STREAM_LEGACY or hipStreamLegacy for the
 *                      default stream. NULL: a stream of pier's own, which waits for
 *                      nothing.
 * ret_copy             the caller's, to be given to pier_copy_wait()
 *
 * Errors: those of pier_buffer_copy_to(); -EOPNOTSUPP also: a stream is given, and the
 * backend has none; -ENOMEM. After an error nothing is under way.
 */
PIER_API int pier_buffer_copy_start_to(struct pier_buffer *buffer, size_t offset,
				       const void *source, size_t length, void *stream,
				       struct pier_copy **ret_copy);
PIER_API int pier_buffer_copy_start_from(struct pier_buffer *buffer, size_t offset,
					 void *destination, size_t length, void *stream,
					 struct pier_copy **ret_copy);

/**
 * Return whether a copy is done, without waiting: 1 if the bytes are where they belong,
 * and 0 if it is under way. May be called again after each result. One thread at a time
 * may use a copy.
 *
 * Errors: those of the backend: the copy has failed, and is no longer under way; -ECHILD
 * the parent of this process started it.
 */
PIER_API int pier_copy_query(struct pier_copy *copy);

/**
 * Wait until a copy is done or has failed, and free it, also after an error; NULL is
 * fine.
 *
 * Errors: those of pier_copy_query(). After -ECHILD the copy exists still.
 */
PIER_API int pier_copy_wait(struct pier_copy *copy);

/**
 * Export [offset, offset + length) of a buffer as a dma-buf.
 *
 * The dma-buf covers whole host pages; ret_dmabuf says where in it the range
 * lies. It must be closed with pier_dmabuf_close() before the buffer is freed;
 * a memory region registered from it keeps its own reference, so close it as
 * soon as the registration returned, whatever it returned.
 *
 * Memory of the backend "memfd" gives the memfd itself, which only soft0 takes
 * for a dma-buf.
 *
 * Errors: -ERANGE outside the buffer; -EINVAL length 0; -EOPNOTSUPP this
 * memory cannot be exported; -ENOMEM; those of the backend (-EMFILE).
 */
PIER_API int pier_dmabuf_export(struct pier_buffer *buffer, size_t offset, size_t length,
				struct pier_dmabuf *ret_dmabuf);

/**
 * pier_dmabuf_export() with a mapping of the caller's choice.
 *
 * mapping  PIER_MAPPING_AUTO is the default one
 *
 * Errors: those of pier_dmabuf_export(); -EOPNOTSUPP also: the driver does not have
 * this mapping; -EINVAL not one of enum pier_mapping.
 */
PIER_API int pier_dmabuf_export_mapped(struct pier_buffer *buffer, size_t offset,
				       size_t length, enum pier_mapping mapping,
				       struct pier_dmabuf *ret_dmabuf);

/** Close an exported dma-buf and set its fd to -1; one with fd -1 is fine. */
PIER_API void pier_dmabuf_close(struct pier_dmabuf *dmabuf);

PIER_END_DECLS

#endif
