/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_CUDA_MEMORY_H
#define PIER_BACKENDS_CUDA_MEMORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "backends/backend.h"
#include "driver.h"
#include "core/list.h"

/* What the files of the backend tell each other of an allocation. */

enum pier_cuda_kind {
	PIER_CUDA_LINEAR,     /* cuMemAlloc() */
	PIER_CUDA_VMM,	      /* cuMemCreate() and cuMemMap() */
	PIER_CUDA_VMM_HOST,   /* the same, of memory on the host */
	PIER_CUDA_POOL,	      /* cuMemAllocAsync() */
	PIER_CUDA_MANAGED,    /* cuMemAllocManaged() */
	PIER_CUDA_HOST,	      /* cuMemHostAlloc() */
	PIER_CUDA_REGISTERED, /* cuMemHostRegister() */
};

/* pier_memory.state. Constant once it is handed out, but for `users` and `synchronous`.
 */
struct pier_cuda_memory {
	struct pier_list link; /* of pier's own */
	unsigned int users;    /* of pier's own, under the list's lock */
	bool own;	       /* pier allocated it */
	struct pier_cuda *cuda;
	enum pier_cuda_kind kind;
	int device;	   /* that it is on, or by whose context it was made */
	bool on_no_device; /* the driver names none: `device` is 0 */
	CUcontext context; /* its own, or NULL: the device's primary one */
	/* What pier_memory says; whole host pages where that can be exported. */
	uint64_t address;
	uint64_t length;
	void *cpu;
	/* What the driver says: where the allocation starts, and its length. */
	uint64_t start;
	uint64_t start_length;
	uint64_t segment; /* VMM of pier's own: length of each */
	uint32_t segments;
	bool rdma_capable;	 /* VMM: gpuDirectRDMACapable */
	uint64_t identity;	 /* or 0 */
	atomic_bool synchronous; /* SYNC_MEMOPS is set */
};

/* pier_cuda_enter() of the context of an allocation. */
int pier_cuda_enter_memory(const struct pier_cuda_memory *memory,
			   struct pier_cuda_scope *ret_scope);

/* "on CUDA device 0", for sentences; kinds in words. */
const char *pier_cuda_kind_name(enum pier_cuda_kind kind);

static inline bool pier_cuda_is_host(const struct pier_cuda_memory *memory)
{
	return memory->kind == PIER_CUDA_HOST || memory->kind == PIER_CUDA_REGISTERED ||
	       memory->kind == PIER_CUDA_VMM_HOST;
}

/* Of pieces that cuMemMap() put there one by one. */
static inline bool pier_cuda_is_mapped(const struct pier_cuda_memory *memory)
{
	return memory->kind == PIER_CUDA_VMM || memory->kind == PIER_CUDA_VMM_HOST;
}

/* The list of pier's own; find() counts a user. */
struct pier_memory pier_cuda_describe(struct pier_cuda_memory *memory);
void pier_cuda_own(struct pier_cuda_memory *memory);
bool pier_cuda_find_own(uint64_t address, struct pier_memory *ret_memory);

/* cuda_alloc.c */
int pier_cuda_alloc(const char *unit, uint64_t length, struct pier_memory *ret_memory);
void pier_cuda_put(struct pier_memory *memory);

/* cuda_find.c */
int pier_cuda_find(uint64_t address, struct pier_memory *ret_memory);
int pier_cuda_find_range(uint64_t address, uint64_t length,
			 struct pier_memory *ret_memory);
int pier_cuda_identity(uint64_t address, uint64_t *ret_identity);
/* A number for what is at the address now; false: nothing of CUDA's. */
bool pier_cuda_read_identity(const struct pier_cuda *cuda, uint64_t address,
			     uint64_t *ret_identity);

/* cuda_mapping.c */
int pier_cuda_segment(const struct pier_memory *memory, uint64_t address,
		      uint64_t *ret_start, uint64_t *ret_length);
/* The mapping around an address, of one cuMemMap(); with a context of its device current.
 */
bool pier_cuda_read_mapping(const struct pier_cuda *cuda, uint64_t address,
			    uint64_t *ret_start, uint64_t *ret_length);
/*
 * The mappings from an address on that are like the first, up to the end of a range.
 * False: nothing was mapped there by cuMemMap(). *ret_known: its bounds are known.
 */
bool pier_cuda_read_mappings(struct pier_cuda_memory *memory, uint64_t address,
			     uint64_t length, bool *ret_known);

/* cuda_export.c */
int pier_cuda_export(const struct pier_memory *memory, uint64_t address, uint64_t length,
		     struct pier_backend_export *ret_export);
int pier_cuda_export_mapped(const struct pier_memory *memory, uint64_t address,
			    uint64_t length, enum pier_mapping mapping,
			    struct pier_backend_export *ret_export);
void pier_cuda_close_export(struct pier_backend_export *dmabuf);
/* For a NIC that is given the address. */
int pier_cuda_expose(const struct pier_memory *memory);
/* Errors: -EINVAL what was wrapped is no more; with a context of its device current. */
int pier_cuda_check_live(const struct pier_cuda_memory *memory);
/* Why not, and the way out; "" it can be exported. */
void pier_cuda_explain_export(const struct pier_cuda_memory *memory, char *ret_text,
			      size_t size);

/* cuda_copy.c */
int pier_cuda_copy_to(const struct pier_memory *memory, uint64_t offset,
		      const void *source, uint64_t length);
int pier_cuda_copy_from(const struct pier_memory *memory, uint64_t offset,
			void *destination, uint64_t length);
/* All of it, with its context entered. */
int pier_cuda_clear(const struct pier_cuda_memory *memory);
int pier_cuda_flush(const struct pier_memory *memory);
int pier_cuda_lock_host(const struct pier_memory *memory, void *addr, uint64_t length);
void pier_cuda_unlock_host(const struct pier_memory *memory, void *addr);

/* cuda_unit.c */
int pier_cuda_unit(uint32_t index, struct pier_backend_unit *ret_unit);
int pier_cuda_locate(const struct pier_memory *memory, char ret_pci[16],
		     int *ret_numa_node);
/* The length of BAR1, by which other devices reach the memory; 0 not known. */
uint64_t pier_cuda_bar1(const char *devices, const char *pci);

#endif
