/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKEND_H
#define PIER_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <pier/buffer.h>
#include <pier/export.h>
#include <pier/log.h>

PIER_BEGIN_DECLS

/**
 * How an allocator becomes a backend of pier. For authors of backends; <pier/pier.h> does
 * not include it.
 *
 * A backend is a table of functions, struct pier_backend. Built-in backends use the same
 * table. There are two ways to add one:
 *
 * - A shared object in a folder that PIER_BACKEND_PATH names. It exports one function,
 *   pier_backend_get(), and need not link libpier: struct pier_backend_host has the
 *   functions that it may call.
 * - A program calls pier_backend_register().
 *
 * Versions. PIER_BACKEND_ABI changes only if old backends cannot work any more; the
 * library refuses a table of another ABI and names both numbers. Within one ABI, members
 * are only appended, and each struct begins with its size:
 *
 * - The side that defines a variable sets `size` to the sizeof of its own header, and all
 *   members that it does not use to zero. For struct pier_backend that is the backend;
 *   for all other structs it is the library.
 * - The other side accesses no member past `size`, and does not change `size`.
 * - A member past `size` counts as zero: as a NULL function, or as "unknown".
 *
 * So a backend that was built with an older header works: the library finds the missing
 * members zero. A backend that was built with a newer header works, too: it sets single
 * members of a struct that the library passes (not the whole struct by assignment, which
 * may be longer than the library's), and checks members that are newer than the first
 * version of the ABI with PIER_BACKEND_HAS().
 *
 * Unless stated otherwise, a function returns 0 or a negative errno, and describes its
 * failure with fail() or pier_fail(). Any thread may call any function at any time, also
 * several at once. Release your own locks before you call fail(), log() or revoke().
 * Optional members may be NULL. name, description, probe, alloc and free are required;
 * with `dmabuf` or `memfd`, export_range and close_export are, too.
 */

#define PIER_BACKEND_ABI    2
#define PIER_BACKEND_SYMBOL "pier_backend_get"

/** Of pier_backend_get(), which the shared object exports, not the library. */
#if defined(__GNUC__)
#define PIER_BACKEND_API __attribute__((visibility("default")))
#else
#define PIER_BACKEND_API
#endif

/** Whether a struct that the other side made has a member. */
#define PIER_BACKEND_HAS(object, member)                                             \
	((size_t)((const char *)(&(object)->member + 1) - (const char *)(object)) <= \
	 (object)->size)

/**
 * For backends: store a sentence for pier_error_message() and return -error.
 *
 * error  a positive errno value
 *
 * Returns -error.
 */
PIER_API int pier_fail(int error, const char *format, ...) PIER_PRINTF(2, 3);

#ifdef __clang_analyzer__
/* A static analyzer sees one source file: show it that pier_fail() is below 0. */
#define pier_analyze_failure(failure)            \
	__extension__({                          \
		int pier_failed = failure;       \
		if (pier_failed >= 0)            \
			__builtin_unreachable(); \
		pier_failed;                     \
	})
#define pier_fail(...) pier_analyze_failure(pier_fail(__VA_ARGS__))
#endif

/** The library, for a backend. Constant, and valid until the process ends. */
struct pier_backend_host {
	size_t size;
	/** The library's PIER_BACKEND_ABI. */
	uint32_t abi;
	/** The library's version, as PIER_VERSION_ENCODE() makes it. */
	uint32_t version;
	/** pier_fail(). */
	int (*fail)(int error, const char *format, ...) PIER_PRINTF(2, 3);
	/** Log one line, without a newline; see <pier/log.h>. */
	void (*log)(enum pier_log_level level, const char *format, ...) PIER_PRINTF(2, 3);
	/** pier_backend_revoke(). */
	void (*revoke)(uint64_t address, uint64_t length);
};

/** An allocation, or a part of memory that find() recognised. */
struct pier_memory {
	size_t size;
	/** Device address, or host pointer; not 0. */
	uint64_t address;
	/** Of the allocation, in bytes; whole pages if it can be exported. */
	uint64_t length;
	/** Pointer for the CPU; NULL: the CPU cannot reach it. */
	void *cpu;
	/** The backend's own. */
	void *state;
	/**
	 * Of exports, in bytes: a power of two, at least a host page. Requests begin and
	 * end at multiples of it from `address` on, or at the allocation's end. 0: they
	 * begin and end on host pages.
	 */
	uint64_t granularity;
};

/** Properties of an allocation, for reports and for choosing its path to a NIC. */
struct pier_memory_facts {
	size_t size;
	/** The kind of allocation: "cuMemAlloc", "managed memory", "page-locked host". */
	char kind[48];
	/** The unit that holds it, as a spec names it: "0"; "" if there are none. */
	char unit[32];
	/**
	 * Why it cannot be exported, and the remedy: export_range() is not called then.
	 * "": it can be, or unknown.
	 */
	char no_export[256];
	/** It is host memory: a NIC is best given `cpu`. */
	bool host;
	/** Its pages move: it is never registered by its address. */
	bool moves;
	/**
	 * The mapping to try first, if the backend has `mappings`; PIER_MAPPING_AUTO: the
	 * default one.
	 */
	enum pier_mapping mapping;
	/**
	 * A NIC may write it out of order (PCI Express relaxed ordering): flush() makes
	 * all completed writes visible in whatever order they arrive, and with the
	 * default mapping it does so without PIER_BACKEND_READ_BACK.
	 */
	bool any_order;
	/**
	 * The device that holds it is joined to the CPU by a coherent link (NVLink-C2C)
	 * beside PCIe. Then each NIC suits one mapping, and the other may register and
	 * reach nothing. The library chooses by the topology.
	 */
	bool coherent;
	/** What a user can try if a NIC refuses its dma-bufs; "" if nothing is known. */
	char remedy[192];
	/**
	 * The unit that allocates memory of the same kind, if it is not `unit`: "0:vmm".
	 * Before a NIC uses memory, bytes are sent through such memory.
	 */
	char alike[40];
};

/** One unit that a spec can name: a GPU. */
struct pier_backend_unit {
	size_t size;
	char unit[32];	  /**< the part of a spec after the colon */
	char name[96];	  /**< "NVIDIA H200" */
	char pci[16];	  /**< its PCI address, "0000:17:00.0", or "" */
	int numa_node;	  /**< or -1: with a PCI address, sysfs decides */
	char detail[160]; /**< facts for the user, or "" */
};

/** The importer's accesses to exported memory: bits of pier_backend_request.access. */
enum {
	PIER_BACKEND_READ = 1,
	PIER_BACKEND_WRITE = 2,
};

/** A request to export_range(). */
struct pier_backend_request {
	size_t size;
	/** The first byte: in the allocation, on a host page. */
	uint64_t address;
	/** In bytes: whole host pages, which end in the allocation. */
	uint64_t length;
	/** PIER_MAPPING_DEFAULT or PIER_MAPPING_PCIE. */
	enum pier_mapping mapping;
	/** PIER_BACKEND_READ, PIER_BACKEND_WRITE, or both. */
	uint32_t access;
	/** The RDMA device that will import it, "mlx5_0"; NULL: unknown. */
	const char *importer;
};

/** A dma-buf of a range of an allocation. */
struct pier_backend_export {
	size_t size;
	/** Close-on-exec. */
	int fd;
	/** Where `address` of the request lies in the dma-buf, in bytes. */
	uint64_t offset;
	/** The backend's own, for close_export(). */
	void *state;
	/**
	 * How much of the request it covers from `address` on, in bytes; whole host
	 * pages. 0: all. Only backends with `parts` may cover less than all.
	 */
	uint64_t length;
};

/** Whole pages of a memfd, for join(). */
struct pier_backend_range {
	size_t size;
	int fd;		 /**< borrowed */
	uint64_t offset; /**< in the memfd, in bytes */
	uint64_t length; /**< in bytes */
};

/** A request to flush(): the bytes to make visible. */
struct pier_backend_flush {
	size_t size;
	uint64_t address; /**< of the first byte, in the allocation */
	uint64_t length;  /**< in bytes */
	/** The RDMA device that wrote or will read it, "mlx5_0". */
	const char *device;
	/**
	 * The mapping of the dma-buf by which the device reaches it. PIER_MAPPING_AUTO:
	 * the backend has one only, or the device reaches it in another way.
	 */
	enum pier_mapping mapping;
	/**
	 * The device has read a byte of the range back: flush() asked for it, by
	 * PIER_BACKEND_READ_BACK, and is called again.
	 */
	bool read_back;
};

/** A result of flush(): the device that wrote must first read a byte back. */
#define PIER_BACKEND_READ_BACK 1

/** A copy for copy_start(). */
struct pier_backend_copy {
	size_t size;
	uint64_t offset; /**< of the first byte, from the allocation's `address` on */
	uint64_t length; /**< in bytes, not 0 */
	/** Host memory; with `to_host` it is written, otherwise only read. */
	void *host;
	/** Copy from the allocation to `host`, not from `host` to the allocation. */
	bool to_host;
	/**
	 * The caller's stream, of the backend's own type (CUstream, hipStream_t). NULL: a
	 * stream of the backend's, where the copy does not wait for the caller's work.
	 */
	void *stream;
};

/** Most bytes of a driver's handle for other processes. */
#define PIER_BACKEND_IPC_MAX 128

/** An allocation, for another process of this host. */
struct pier_backend_ipc {
	size_t size;
	/** The address, in the process that owns it, of the first byte that is opened. */
	uint64_t address;
	uint32_t length; /**< of `bytes`: 1 to PIER_BACKEND_IPC_MAX */
	uint8_t bytes[PIER_BACKEND_IPC_MAX];
};

struct pier_backend {
	/** PIER_BACKEND_ABI. */
	uint32_t abi;
	/** sizeof(struct pier_backend). */
	uint32_t size;
	/**
	 * The NAME of specs: 1 to 31 letters, digits and '_'. Both strings must stay
	 * valid until the process ends.
	 */
	const char *name;
	/** A few words about its memory, for reports. */
	const char *description;
	/** export_range() gives real dma-bufs. */
	bool dmabuf;
	/** export_range() gives memfds, which the software NIC takes as dma-bufs. */
	bool memfd;
	/** export_range() knows PIER_MAPPING_PCIE, if the driver is new enough. */
	bool mappings;

	/**
	 * Whether it works on this machine.
	 *
	 * Returns 0, and writes limits that matter to a user, or ""; or -errno, and
	 * writes the reason and a remedy. Need not call fail().
	 */
	int (*probe)(char *ret_detail, size_t size);

	/**
	 * Allocate at least `length` bytes, reading as zero.
	 *
	 * unit  the part of the spec after the colon, or NULL
	 *
	 * Errors: -EINVAL unknown unit; -EOPNOTSUPP does not work on this machine; -E2BIG
	 * beyond a limit; -ENOMEM.
	 */
	int (*alloc)(const char *unit, uint64_t length, struct pier_memory *ret_memory);
	void (*free)(struct pier_memory *memory);

	/**
	 * Optional: recognise a pointer. Writes the allocation around `address`, which
	 * release() (optional) undoes. With both, the allocation must outlive its free()
	 * until it is released. Allocations of the same kind that follow each other
	 * without a gap may be reported as one, if [address, address + length) needs
	 * several. The reported memory may end earlier than the range: the caller's
	 * mistake.
	 *
	 * The library calls it for every pointer that is wrapped, even if probe() fails.
	 *
	 * Errors: -ENOENT the memory is not this backend's (without fail()).
	 */
	int (*find)(uint64_t address, uint64_t length, struct pier_memory *ret_memory);
	void (*release)(struct pier_memory *memory);

	/**
	 * Optional: export a range of an allocation.
	 *
	 * Errors: -EXDEV one dma-buf cannot have all of the range, and segment() tells
	 * the parts; -EOPNOTSUPP the driver or device does not have this mapping.
	 */
	int (*export_range)(const struct pier_memory *memory,
			    const struct pier_backend_request *request,
			    struct pier_backend_export *ret_export);
	/** Closes the fd, too. The allocation still exists. */
	void (*close_export)(struct pier_backend_export *dmabuf);

	/**
	 * Optional: the part around `address` that can be exported alone. The library
	 * asks after -EXDEV.
	 */
	int (*segment)(const struct pier_memory *memory, uint64_t address,
		       uint64_t *ret_start, uint64_t *ret_length);

	/**
	 * Copy between the allocation and host memory. Optional if `cpu` is set: then the
	 * library uses memcpy(), between begin_cpu() and end_cpu(). Also optional with
	 * copy_start(): then the library starts a copy and waits for it.
	 */
	int (*copy_to)(const struct pier_memory *memory, uint64_t offset,
		       const void *source, uint64_t length);
	int (*copy_from)(const struct pier_memory *memory, uint64_t offset,
			 void *destination, uint64_t length);

	/**
	 * Optional: make a NIC's writes visible to the CPU and to device code, and their
	 * writes visible to the NIC.
	 *
	 * Returns 0; PIER_BACKEND_READ_BACK if writes may still be on their way to the
	 * device, and only a read by the same NIC waits for them: then the library lets
	 * the NIC read a byte, and calls flush() again with `read_back`; or -errno.
	 * Libraries without `read_back` take PIER_BACKEND_READ_BACK for a failure.
	 */
	int (*flush)(const struct pier_memory *memory,
		     const struct pier_backend_flush *range);

	/**
	 * Optional: the hardware that holds an allocation: its PCI address
	 * ("0000:17:00.0") or "", and its NUMA node or -1. With a PCI address, -1 means:
	 * sysfs decides.
	 */
	int (*locate)(const struct pier_memory *memory, char ret_pci[16],
		      int *ret_numa_node);

	/**
	 * Optional, both or neither: what the CPU must do before and after it reads, or
	 * (with `write`) reads and writes, through `cpu`. end_cpu() follows every
	 * begin_cpu() that returned 0, with the same `write`.
	 */
	int (*begin_cpu)(const struct pier_memory *memory, bool write);
	int (*end_cpu)(const struct pier_memory *memory, bool write);

	/**
	 * Optional: make one dma-buf of ranges of memfds, which follow each other in it
	 * from offset 0 on. close_export() closes it.
	 *
	 * ranges  read them with pier_backend_range_at()
	 */
	int (*join)(const struct pier_backend_range *ranges, uint32_t count,
		    struct pier_backend_export *ret_export);

	/**
	 * Optional: a number that no other allocation at this address ever had.
	 * Registration caches ask at each hit, for memory that can be freed without
	 * pier_buffer_free() while find() and release() do not keep it.
	 *
	 * Errors: -ENOENT not, or no longer, this backend's (without fail()).
	 */
	int (*identity)(uint64_t address, uint64_t *ret_identity);

	/**
	 * Optional: describe an allocation, as far as the backend can. The library asks
	 * once, right after alloc(), find() or ipc_open().
	 */
	void (*describe)(const struct pier_memory *memory,
			 struct pier_memory_facts *ret_facts);

	/**
	 * Optional: the units, from index 0 on.
	 *
	 * Errors: -ENOENT there are no more (without fail()).
	 */
	int (*unit)(uint32_t index, struct pier_backend_unit *ret_unit);

	/**
	 * Optional: lock whole pages of host memory for the driver, so that copies
	 * between them and the device that holds the allocation are fast; and undo that.
	 * Copies work without it.
	 */
	int (*lock_host)(const struct pier_memory *memory, void *addr, uint64_t length);
	void (*unlock_host)(const struct pier_memory *memory, void *addr);

	/**
	 * Optional: a NIC will be given the allocation by its address (peer memory), not
	 * by an export. Do what an export does in addition, such as making the driver's
	 * memory operations synchronous.
	 */
	int (*expose)(const struct pier_memory *memory);

	/**
	 * export_range() may cover the beginning of a request only, and reports how much.
	 * A region of a range that needs several dma-bufs gets a part for each. A backend
	 * that knows the limits beforehand returns -EXDEV and has segment() instead,
	 * which saves the library an export for each part.
	 */
	bool parts;

	/**
	 * Optional, both or neither: copy in the order of a stream, and report when the
	 * copy is done. A backend with both may omit copy_to() and copy_from().
	 *
	 * copy_start() queues a copy behind all work that is in the stream already. It
	 * must not keep a pointer to `copy` itself. Until the copy is done, the library
	 * does not free() or release() the allocation; the host memory stays valid.
	 *
	 * cuda and hip queue an asynchronous copy and an event behind it
	 * (cuMemcpyHtoDAsync() and cuEventRecord(), hipMemcpyAsync() and
	 * hipEventRecord()), and copy_query() calls cuEventQuery() or hipEventQuery(). If
	 * the host memory is not page-locked, the driver may copy before copy_start()
	 * returns.
	 *
	 * ret_copy  for copy_query(); NULL: the copy is already done
	 *
	 * Errors: no part of the copy is running.
	 */
	int (*copy_start)(const struct pier_memory *memory,
			  const struct pier_backend_copy *copy, void **ret_copy);

	/**
	 * Report whether a copy is done, without waiting. Any thread may call it, but
	 * only one at a time for the same copy.
	 *
	 * Returns 1 if the copy is done, 0 if it is still running, or -errno. 1 and an
	 * error both release `copy`; the library does not use it again. After an error,
	 * no part of the copy is running, and the contents of the destination are
	 * undefined.
	 */
	int (*copy_query)(void *copy);

	/**
	 * Optional: do what the first use of a unit would do, such as making a context.
	 *
	 * unit  as for alloc()
	 *
	 * Errors: those of alloc().
	 */
	int (*warm_up)(const char *unit);

	/**
	 * Optional: describe an allocation for other processes of this host. Sets all
	 * members of `ret_ipc` but its size.
	 *
	 * Errors: -EOPNOTSUPP the driver shares no memory, or not this kind.
	 */
	int (*ipc_export)(const struct pier_memory *memory,
			  struct pier_backend_ipc *ret_ipc);

	/**
	 * Optional, requires release(), which closes it: open memory of another process.
	 *
	 * ipc   of ipc_export() of this backend in another process, without the address.
	 *       The bytes come from a peer: check them
	 * from  an allocation of the device that will copy
	 *
	 * Errors: -EOPNOTSUPP the devices have no access to each other; -EINVAL.
	 */
	int (*ipc_open)(const struct pier_backend_ipc *ipc,
			const struct pier_memory *from, struct pier_memory *ret_memory);

	/**
	 * Optional: copy between two memories of this backend, and return when that is
	 * done. The offsets are from the `address` of each memory on.
	 */
	int (*copy_between)(const struct pier_memory *to, uint64_t to_offset,
			    const struct pier_memory *from, uint64_t from_offset,
			    uint64_t length);
};

/** Element `index` of an array whose elements may be longer than this header's. */
static inline const struct pier_backend_range *pier_backend_range_at(
	const struct pier_backend_range *ranges, uint32_t index)
{
	const void *element = (const char *)ranges + index * ranges->size;

	return (const struct pier_backend_range *)element;
}

/**
 * The function that a shared object exports, with this name and type.
 *
 * host  the library's table; its ABI may differ from the object's, so check host->abi if
 *       the object supports several
 *
 * Returns the table, which must stay valid until the process ends; or NULL after
 * host->fail(), and the library lists the object with that sentence. The library calls it
 * once, with a lock held: it must not call functions of <pier/...>.
 */
typedef const struct pier_backend *pier_backend_get_function(
	const struct pier_backend_host *host);
PIER_BACKEND_API const struct pier_backend *pier_backend_get(
	const struct pier_backend_host *host);

/**
 * Add a backend of the program's own. It is used like the others from then on: by specs,
 * and by find() for pointers that are wrapped later. Buffers and regions that exist
 * already stay with the backend that they have.
 *
 * A backend cannot be unregistered: buffers, cached regions and other threads may still
 * use it. So the functions and the two strings must stay valid until the process ends;
 * a shared object that calls this must not be closed. The table itself is copied.
 *
 * Any thread may call it, before or after other functions of the library. The first use
 * of any backend loads those of PIER_BACKEND_PATH, and so does this.
 *
 * Errors: -EEXIST a built-in, loaded or registered backend has this name; -EPROTO the
 * table has another PIER_BACKEND_ABI (the sentence names both); -EINVAL the table
 * is NULL, the name is malformed, or a required member is missing; -ENOSPC 32 are
 * registered; -ENOMEM.
 */
PIER_API int pier_backend_register(const struct pier_backend *backend);

/**
 * For backends: memory that find() reported was freed or moved, without
 * pier_buffer_free(). Registration caches forget the regions that touch [address, address
 * + length): they deregister those that are idle before this returns, and those that are
 * handed out when they are given back. A later get registers what is there then.
 *
 * Regions that a program registered itself stay. They keep the old memory, if they were
 * registered by a dma-buf: the import holds a reference and, unless the NIC's driver can
 * follow moves (move_notify of struct dma_buf_attach_ops), pins it.
 *
 * Any thread, without locks of the backend. Not from within a function of the backend
 * that the library called. Cannot fail.
 */
PIER_API void pier_backend_revoke(uint64_t address, uint64_t length);

PIER_END_DECLS

#endif
