/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_CUDA_MEMORY_H
#define PIER_BACKENDS_CUDA_MEMORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "api.h"
#include "backends/backend.h"
#include "backends/own.h"
#include "driver.h"

enum pier_cuda_kind {
	PIER_CUDA_LINEAR,   /* cuMemAlloc() */
	PIER_CUDA_VMM,	    /* cuMemCreate() and cuMemMap() */
	PIER_CUDA_VMM_HOST, /* the same, of memory on the host */
	PIER_CUDA_POOL,	    /* cuMemAllocAsync() */
	PIER_CUDA_MANAGED,  /* cuMemAllocManaged(), or of a managed pool */
	PIER_CUDA_HOST,	    /* cuMemHostAlloc() or cuMemHostRegister() */
	PIER_CUDA_OPENED,   /* cuIpcOpenMemHandle(): of another process */
};

/* pier_memory.state. Constant once published, except `listed` and `synchronous`. */
struct pier_cuda_memory {
	bool own;		       /* pier allocated it */
	struct pier_own_memory listed; /* pier's own */
	struct pier_cuda *cuda;
	enum pier_cuda_kind kind;
	int device;	   /* that holds it, or whose context allocated it */
	bool on_no_device; /* the driver names none: `device` is 0 */
	CUcontext context; /* not the device's primary one; or NULL */
	/* As in pier_memory; whole host pages if it can be exported. */
	uint64_t address;
	uint64_t length;
	void *cpu;
	/* The driver's bounds of the allocation. */
	uint64_t start;
	uint64_t start_length;
	uint64_t segment; /* VMM of pier's own: length of each */
	uint32_t segments;
	bool rdma_capable;	 /* VMM: GPUDirect RDMA was granted */
	uint64_t identity;	 /* or 0 */
	atomic_bool synchronous; /* SYNC_MEMOPS is set */
};

/* find() of the backend, for memory that is not pier's own. */
int pier_cuda_find(uint64_t address, uint64_t length, struct pier_memory *ret_memory);

/* A number of the allocation that is at an address now; false: none of CUDA's. */
bool pier_cuda_read_identity(const struct pier_cuda *cuda, uint64_t address,
			     uint64_t *ret_identity);

/* identity() of the backend. */
int pier_cuda_identity(uint64_t address, uint64_t *ret_identity);

/*
 * Whether the memory is gone: wrapped memory that its owner freed, or memory of pier's
 * own after cudaDeviceReset(). Something else may be at its address. Memory that had no
 * identity at first cannot be distinguished from later memory, and counts as live.
 */
bool pier_cuda_was_freed(const struct pier_cuda_memory *memory);

/*
 * Check that the memory is still there. With a context of its device current.
 *
 * Errors: -EINVAL it is not.
 */
int pier_cuda_check_live(const struct pier_cuda_memory *memory);

/* pier_cuda_enter() of the context of an allocation. */
int pier_cuda_enter_memory(const struct pier_cuda_memory *memory,
			   struct pier_cuda_saved *ret_saved);

/* The same with pier_cuda_check_live(). */
int pier_cuda_enter_live(const struct pier_cuda_memory *memory,
			 struct pier_cuda_saved *ret_saved);

/* The kind in words: "cuMemAlloc". */
const char *pier_cuda_kind_name(enum pier_cuda_kind kind);

static inline bool pier_cuda_is_host(const struct pier_cuda_memory *memory)
{
	return memory->kind == PIER_CUDA_HOST || memory->kind == PIER_CUDA_VMM_HOST;
}

/* Made of segments that cuMemMap() mapped one by one. */
static inline bool pier_cuda_is_mapped(const struct pier_cuda_memory *memory)
{
	return memory->kind == PIER_CUDA_VMM || memory->kind == PIER_CUDA_VMM_HOST;
}

struct pier_memory pier_cuda_describe(struct pier_cuda_memory *memory);

/* segment() of the backend. */
int pier_cuda_segment(const struct pier_memory *memory, uint64_t address,
		      uint64_t *ret_start, uint64_t *ret_length);

/*
 * The mapping of one cuMemMap() around an address; with a context of its device current.
 * Returns the error of cuMemGetAddressRange() if nothing else reports it, either.
 */
CUresult pier_cuda_read_mapping(const struct pier_cuda *cuda, uint64_t address,
				uint64_t *ret_start, uint64_t *ret_length);

/*
 * Returns false, and leaves *ret_value alone, if this driver does not know the attribute.
 */
bool pier_cuda_read_attribute(const struct pier_cuda *cuda, uint64_t address,
			      CUpointer_attribute attribute, void *ret_value);

bool pier_cuda_is_rdma_capable(const struct pier_cuda *cuda, uint64_t address);

#endif
