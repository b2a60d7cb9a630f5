/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKEND_H
#define PIER_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <pier/buffer.h>
#include <pier/export.h>

PIER_BEGIN_DECLS

/**
 * How an allocator becomes a backend of pier. For those who write one; not
 * included by <pier/pier.h>.
 *
 * A backend is a table of functions. Those that are built in and those in
 * shared objects found through PIER_BACKEND_PATH have the same table. A shared
 * object exports one symbol:
 *
 *	const struct pier_backend pier_backend = {
 *		.abi = PIER_BACKEND_ABI, .size = sizeof(struct pier_backend), ...
 *	};
 *
 * Objects of another abi are refused. Members may be added at the end with the
 * same abi; `size` tells which ones an object knows: those past it are taken
 * for NULL.
 *
 * Unless said otherwise a function returns 0 or a negative errno and says why
 * through pier_fail(). All of them may be called from any thread at once, and
 * must be done with their own locks when they call back into pier_fail().
 * Optional members may be NULL; name, description, probe, alloc and free must
 * be there, and with `dmabuf` or `memfd` also export_range and close_export.
 */

#define PIER_BACKEND_ABI    1
#define PIER_BACKEND_SYMBOL "pier_backend"

/**
 * For backends: remember a sentence for pier_error_message() and return -error.
 * `error` is a positive errno value.
 */
PIER_API int pier_fail(int error, const char *format, ...) PIER_PRINTF(2, 3);

/** An allocation, or a piece of memory that was recognised by find(). */
struct pier_memory {
	uint64_t address; /**< device address, or host pointer; not 0 */
	uint64_t length;  /**< of the allocation: whole pages if it can be exported */
	/** Where the CPU reaches it; NULL: nowhere. */
	void *cpu;
	/** The backend's own. */
	void *state;
};

/** What an allocation is, in words and for choosing its path to a NIC. */
struct pier_memory_facts {
	/** The kind of allocation: "cuMemAlloc", "managed memory", "page-locked host". */
	char kind[48];
	/** The unit that has it, as a spec names it: "0"; "" where there are none. */
	char unit[32];
	/** Why it cannot be exported, and the way out; "": it can be, or nobody knows. */
	char no_export[256];
	/** It is host memory: a NIC is best given `cpu`. */
	bool host;
	/** Its pages move: it is never registered by its address. */
	bool moves;
};

/** One unit that a spec can name: a GPU. */
struct pier_backend_unit {
	char unit[32];	  /**< what stands behind the colon of a spec */
	char name[96];	  /**< "NVIDIA H200" */
	char pci[16];	  /**< its PCI address, "0000:17:00.0", or "" */
	int numa_node;	  /**< or -1: with a PCI address, what sysfs says */
	char detail[160]; /**< what a user may want to know, or "" */
};

/** A dma-buf of host pages of an allocation. */
struct pier_backend_export {
	int fd; /**< close-on-exec */
	/** Where `address` of the request lies in the dma-buf. */
	uint64_t offset;
	/** The backend's own, for close_export(). */
	void *state;
};

/** Whole pages of a memfd. */
struct pier_backend_range {
	int fd;
	uint64_t offset;
	uint64_t length;
};

struct pier_backend {
	uint32_t abi;		 /**< PIER_BACKEND_ABI */
	uint32_t size;		 /**< sizeof(struct pier_backend) */
	const char *name;	 /**< of specs; letters, digits and '_'; at most 31 */
	const char *description; /**< what its memory is, in a few words */
	/** export_range() gives real dma-bufs. */
	bool dmabuf;
	/** export_range() gives memfds, which the software NIC takes as dma-bufs. */
	bool memfd;

	/**
	 * Whether it works here.
	 *
	 * Returns 0, and writes limits that a user may want to know, or "";
	 * or -errno, and writes why not and what to do about it. It need not
	 * call pier_fail().
	 */
	int (*probe)(char *ret_detail, size_t size);

	/**
	 * Allocate at least `length` bytes, reading as zero.
	 *
	 * unit  what stood behind the colon of the spec, or NULL
	 *
	 * Errors: -EINVAL unknown unit; -EOPNOTSUPP does not work here; -E2BIG
	 * beyond a limit; -ENOMEM.
	 */
	int (*alloc)(const char *unit, uint64_t length, struct pier_memory *ret_memory);
	void (*free)(struct pier_memory *memory);

	/**
	 * Optional: whose is this pointer? Writes the allocation around
	 * `address`, which release() (optional) undoes. Where both are there
	 * the allocation must outlive its free() until it is released.
	 *
	 * It is asked for every pointer that is wrapped, also where probe()
	 * fails.
	 *
	 * Errors: -ENOENT not this backend's (without pier_fail()).
	 */
	int (*find)(uint64_t address, struct pier_memory *ret_memory);
	void (*release)(struct pier_memory *memory);

	/**
	 * Optional: export [address, address + length), which lies in the
	 * allocation and on host pages at both ends.
	 */
	int (*export_range)(const struct pier_memory *memory, uint64_t address,
			    uint64_t length, struct pier_backend_export *ret_export);
	/** Closes the fd too. The allocation is still there. */
	void (*close_export)(struct pier_backend_export *dmabuf);

	/**
	 * Copy between the allocation and host memory. Optional where `cpu` is
	 * set: then memcpy does, between begin_cpu() and end_cpu().
	 */
	int (*copy_to)(const struct pier_memory *memory, uint64_t offset,
		       const void *source, uint64_t length);
	int (*copy_from)(const struct pier_memory *memory, uint64_t offset,
			 void *destination, uint64_t length);

	/**
	 * Optional: make what the NIC wrote visible to the CPU and device code,
	 * and what they wrote to the NIC.
	 */
	int (*flush)(const struct pier_memory *memory);

	/**
	 * Optional: the hardware that an allocation sits on: its PCI address
	 * ("0000:17:00.0") or "", and its NUMA node or -1; with a PCI address
	 * -1 is: what sysfs says of that.
	 */
	int (*locate)(const struct pier_memory *memory, char ret_pci[16],
		      int *ret_numa_node);

	/**
	 * Optional: what the CPU must do before and after it reads, or (with
	 * `write`) reads and writes, through `cpu`. end_cpu() follows every
	 * begin_cpu() that returned 0, with the same `write`.
	 */
	int (*begin_cpu)(const struct pier_memory *memory, bool write);
	int (*end_cpu)(const struct pier_memory *memory, bool write);

	/**
	 * Optional: make one dma-buf of ranges of memfds, which follow each other
	 * in it from offset 0 on. The fds are borrowed; close_export() closes it.
	 */
	int (*join)(const struct pier_backend_range *ranges, uint32_t count,
		    struct pier_backend_export *ret_export);

	/**
	 * Optional: a number that no other allocation has that ever was at this
	 * address. For registration caches, which ask at each hit: for memory that
	 * can be freed without pier_buffer_free(), where find() and release() do not
	 * keep it.
	 *
	 * Errors: -ENOENT not, or no longer, this backend's (without pier_fail()).
	 */
	int (*identity)(uint64_t address, uint64_t *ret_identity);

	/**
	 * Optional: find() for a caller who wants [address, address + length): where
	 * allocations of the same kind follow each other without a gap, they may be
	 * found as one. What is found may end earlier, which is the caller's mistake.
	 * Asked instead of find() where it is there.
	 *
	 * Errors: as find().
	 */
	int (*find_range)(uint64_t address, uint64_t length,
			  struct pier_memory *ret_memory);

	/**
	 * Optional: what an allocation is. It writes all of *ret_facts, which
	 * is zero before, as far as it knows.
	 */
	void (*describe)(const struct pier_memory *memory,
			 struct pier_memory_facts *ret_facts);

	/**
	 * Optional: export_range() with another mapping than the default one.
	 *
	 * Errors: -EOPNOTSUPP this driver or device does not have it.
	 */
	int (*export_mapped)(const struct pier_memory *memory, uint64_t address,
			     uint64_t length, enum pier_mapping mapping,
			     struct pier_backend_export *ret_export);

	/**
	 * Optional: the piece around `address` that can be exported alone. Asked when an
	 * export of more was refused with -EXDEV.
	 */
	int (*segment)(const struct pier_memory *memory, uint64_t address,
		       uint64_t *ret_start, uint64_t *ret_length);

	/**
	 * Optional: the units, from index 0 on.
	 *
	 * Errors: -ENOENT there are no more (without pier_fail()).
	 */
	int (*unit)(uint32_t index, struct pier_backend_unit *ret_unit);

	/**
	 * Optional: make copies between host memory and the device that has the
	 * allocation fast, by locking its pages for the driver, and undo that. Whole
	 * pages. Where it fails copies still work.
	 */
	int (*lock_host)(const struct pier_memory *memory, void *addr, uint64_t length);
	void (*unlock_host)(const struct pier_memory *memory, void *addr);

	/**
	 * Optional: a NIC is about to be given the allocation by its address (peer
	 * memory), and not by an export: do what an export does besides, such as making
	 * the driver's memory operations synchronous.
	 */
	int (*expose)(const struct pier_memory *memory);
};

PIER_END_DECLS

#endif
