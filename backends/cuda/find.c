/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "driver.h"
#include "find.h"
#include "memory.h"
#include "mapping.h"
#include "core/checked.h"
#include "core/error.h"

/* The driver's facts on a pointer, which every version reports without a context. */
struct pointer {
	CUcontext context;
	unsigned int type; /* CUmemorytype; 0: not CUDA's */
	unsigned int managed;
	int device;
};

/*
 * For a pointer that is not CUDA's, cuPointerGetAttributes() succeeds and writes zeros;
 * cuPointerGetAttribute() fails with CUDA_ERROR_INVALID_VALUE.
 */
static bool read_pointer(const struct pier_cuda *cuda, uint64_t address,
			 struct pointer *ret_pointer)
{
	struct pointer pointer = { .device = -1 };
	CUpointer_attribute names[] = {
		CU_POINTER_ATTRIBUTE_CONTEXT,
		CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
		CU_POINTER_ATTRIBUTE_IS_MANAGED,
		CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
	};
	void *values[] = {
		&pointer.context,
		&pointer.type,
		&pointer.managed,
		&pointer.device,
	};

	/* This fails, too, before cuInit(), when no memory of CUDA exists. */
	if (cuda->call.cuPointerGetAttributes(sizeof(names) / sizeof(names[0]), names,
					      values, address) != CUDA_SUCCESS ||
	    pointer.type == 0)
		return false;
	*ret_pointer = pointer;
	return true;
}

/*
 * Returns false, and leaves *ret_value alone, if this driver does not know the attribute.
 */
static bool read_attribute(const struct pier_cuda *cuda, uint64_t address,
			   CUpointer_attribute attribute, void *ret_value)
{
	return cuda->call.cuPointerGetAttribute(ret_value, attribute, address) ==
	       CUDA_SUCCESS;
}

/* The attributes came with CUDA 10.2; cuMemGetAddressRange() knows device memory only. */
static CUresult read_range(struct pier_cuda_memory *memory, uint64_t address)
{
	const struct pier_cuda *cuda = memory->cuda;
	CUdeviceptr start = 0;
	size_t length = 0;
	CUresult error;

	if (!read_attribute(cuda, address, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
			    &start) ||
	    !read_attribute(cuda, address, CU_POINTER_ATTRIBUTE_RANGE_SIZE, &length) ||
	    length == 0) {
		error = cuda->call.cuMemGetAddressRange(&start, &length, address);
		if (error != CUDA_SUCCESS)
			return error;
	}
	if (address < start || address - start >= length)
		return CUDA_ERROR_NOT_MAPPED;
	memory->start = start;
	memory->start_length = length;
	return CUDA_SUCCESS;
}

/*
 * Nothing that the driver reports tells memory of cuMemHostAlloc() from page-aligned
 * memory of cuMemHostRegister(): driver 580.159 answers alike, also to
 * cuMemHostGetFlags(), which cuda.h documents to fail for the latter.
 *
 * If the driver knows no range around registered memory (the attributes may be missing,
 * and cuMemGetAddressRange() is for device memory), the length stays 0: then is_plain()
 * makes it ordinary memory of the application, unless the address is the device's.
 */
static CUresult read_host(struct pier_cuda_memory *memory, uint64_t address)
{
	void *cpu = NULL;
	CUresult error = read_range(memory, address);

	if (error != CUDA_SUCCESS)
		memory->start = address;
	/* Registered memory may have another address on the device. */
	if (!read_attribute(memory->cuda, address, CU_POINTER_ATTRIBUTE_HOST_POINTER,
			    &cpu) ||
	    !cpu)
		cpu = (void *)(uintptr_t)address;
	memory->kind = PIER_CUDA_HOST;
	memory->cpu = (char *)cpu - (address - memory->start);
	return (uint64_t)(uintptr_t)cpu == address ? CUDA_SUCCESS : error;
}

static CUresult read_kind(struct pier_cuda_memory *memory, const struct pointer *pointer,
			  uint64_t address, uint64_t length)
{
	void *pool = NULL;
	CUresult error;

	if (pointer->managed) {
		memory->kind = PIER_CUDA_MANAGED;
		return read_range(memory, address);
	}
	/* Check this before the type: memory of cuMemCreate() may be on the host. */
	if (read_attribute(memory->cuda, address, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
			   &pool) &&
	    pool) {
		memory->kind = PIER_CUDA_POOL;
		return read_range(memory, address);
	}
	if (pier_cuda_read_mappings(memory, address, length, &error))
		return error;
	if (pointer->type == CU_MEMORYTYPE_HOST)
		return read_host(memory, address);
	memory->kind = PIER_CUDA_LINEAR;
	return read_range(memory, address);
}

/*
 * Set the bounds that the library sees. Exports cover whole pages, but an allocation of
 * cudaMalloc() may begin and end within a page, whose rest belongs to the driver. So if
 * the wanted range lies in the allocation, the bounds are those of the pages around it.
 * If not, they are the true bounds, for the library's error sentence. Host memory that
 * begins within a page was registered, and the rest of its pages is the application's.
 */
static void set_bounds(struct pier_cuda_memory *memory, uint64_t address, uint64_t length)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), end;

	memory->address = memory->start;
	memory->length = memory->start_length;
	if (pier_cuda_is_mapped(memory) ||
	    (memory->kind == PIER_CUDA_HOST && memory->start % page) ||
	    !pier_range_fits(address - memory->start, length, memory->start_length) ||
	    !pier_round_up_u64(memory->start + memory->start_length, page, &end))
		return;
	memory->address = memory->start & ~(page - 1);
	memory->length = end - memory->address;
	if (memory->cpu)
		memory->cpu = (char *)memory->cpu - (memory->start - memory->address);
}

/*
 * Opening the driver counts its devices. A pointer exists, so cuInit() was called before.
 */
static int read_device(struct pier_cuda_memory *memory, const struct pointer *pointer)
{
	struct pier_cuda *cuda;
	int result = pier_cuda_open(&cuda);

	if (result != 0)
		return result;
	memory->device = pointer->device;
	if (pointer->device < 0 || pointer->device >= atomic_load(&cuda->device_count)) {
		memory->device = 0;
		memory->on_no_device = true;
	}
	memory->context = pointer->context;
	return pier_cuda_recognize(cuda, memory->device, &memory->context);
}

static int fail_bounds(const struct pier_cuda *cuda, CUresult error, uint64_t address)
{
	char text[160];

	pier_cuda_describe_error(cuda, error, text, sizeof(text));
	return pier_fail(EINVAL,
			 "the CUDA driver knows the pointer %#" PRIx64
			 ", but finds no allocation around it (cuMemGetAddressRange: "
			 "%s): it was freed, nothing is mapped there, or the driver "
			 "cannot tell",
			 address, text);
}

static int read_memory(struct pier_cuda_memory *memory, const struct pointer *pointer,
		       uint64_t address, uint64_t length)
{
	struct pier_cuda_scope scope;
	int result = read_device(memory, pointer);
	CUresult error;

	if (result == 0)
		result = pier_cuda_enter_memory(memory, &scope);
	if (result != 0)
		return result;
	error = read_kind(memory, pointer, address, length);
	if (error == CUDA_SUCCESS)
		pier_cuda_read_identity(memory->cuda, memory->start, &memory->identity);
	pier_cuda_leave(memory->cuda, &scope);
	/*
	 * VMM memory belongs to no context: assume that the application writes it in this
	 * one.
	 */
	if (error == CUDA_SUCCESS && memory->kind == PIER_CUDA_VMM)
		pier_cuda_synchronize_context(memory->cuda);
	if (error != CUDA_SUCCESS)
		return fail_bounds(memory->cuda, error, address);
	set_bounds(memory, address, length);
	return 0;
}

/*
 * A range that is longer than the registered memory is ordinary memory of the
 * application, as before its registration. An address that differs from the host's is the
 * device's, and no host pointer.
 */
static bool is_plain(const struct pier_cuda_memory *memory, uint64_t address,
		     uint64_t length)
{
	uint64_t offset = address - memory->address;

	return memory->kind == PIER_CUDA_HOST &&
	       !pier_range_fits(offset, length, memory->length) &&
	       (uint64_t)(uintptr_t)memory->cpu + offset == address;
}

int pier_cuda_find(uint64_t address, uint64_t length, struct pier_memory *ret_memory)
{
	struct pier_cuda_memory *memory;
	struct pier_cuda *cuda;
	struct pointer pointer;
	int result;

	if (pier_cuda_find_own(address, ret_memory))
		return 0;
	cuda = pier_cuda_if_loaded();
	if (!cuda || !read_pointer(cuda, address, &pointer))
		return -ENOENT;
	memory = calloc(1, sizeof(*memory));
	if (!memory)
		return pier_fail(ENOMEM, "no memory for an allocation's description");
	memory->cuda = cuda;
	result = read_memory(memory, &pointer, address, length);
	/* The library takes memory for host memory after -ENOENT. */
	if (result == -ENOENT)
		result = -EIO;
	if (result == 0 && is_plain(memory, address, length))
		result = -ENOENT;
	if (result != 0) {
		free(memory);
		return result;
	}
	*ret_memory = pier_cuda_describe(memory);
	return 0;
}
