/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/checked.h"
#include "core/error.h"
#include "driver.h"
#include "memory.h"

bool pier_cuda_read_attribute(const struct pier_cuda *cuda, uint64_t address,
			      CUpointer_attribute attribute, void *ret_value)
{
	return cuda->call.cuPointerGetAttribute(ret_value, attribute, address) ==
	       CUDA_SUCCESS;
}

/* Only memory of cuMemMap() has a handle to retain. */
static bool read_properties(const struct pier_cuda *cuda, uint64_t address,
			    CUmemAllocationProp *ret_prop)
{
	CUmemGenericAllocationHandle handle;
	bool known;

	if (!cuda->call.cuMemRetainAllocationHandle ||
	    !cuda->call.cuMemGetAllocationPropertiesFromHandle ||
	    cuda->call.cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)address) !=
		    CUDA_SUCCESS)
		return false;
	known = cuda->call.cuMemGetAllocationPropertiesFromHandle(ret_prop, handle) ==
		CUDA_SUCCESS;
	cuda->call.cuMemRelease(handle);
	return known;
}

static uint64_t combine_numbers(uint64_t buffer, uint64_t block)
{
	return buffer * UINT64_C(0x9e3779b97f4a7c15) + block;
}

/*
 * The driver numbers buffers by allocation, or by reservation if memory is mapped into
 * one. It numbers blocks (CUDA 12) by physical memory, which small buffers share. Both
 * numbers start low, so this sum is unique. Without the second number, memory that was
 * mapped anew into the same reservation cannot be distinguished, and has none.
 */
bool pier_cuda_read_identity(const struct pier_cuda *cuda, uint64_t address,
			     uint64_t *ret_identity)
{
	unsigned long long buffer = 0, block = 0;
	CUpointer_attribute names[] = { CU_POINTER_ATTRIBUTE_BUFFER_ID,
					CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID };
	void *values[] = { &buffer, &block };
	CUmemAllocationProp prop;
	bool known, has_block;

	/*
	 * In one call, because caches ask at each hit. Zeros if the pointer is not
	 * CUDA's, an error if the driver knows no blocks.
	 */
	if (cuda->call.cuPointerGetAttributes(2, names, values, address) ==
		    CUDA_SUCCESS &&
	    block) {
		*ret_identity = combine_numbers(buffer, block);
		return true;
	}
	known = pier_cuda_read_attribute(cuda, address, CU_POINTER_ATTRIBUTE_BUFFER_ID,
					 &buffer);
	has_block = pier_cuda_read_attribute(
		cuda, address, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, &block);
	known = has_block || (known && !read_properties(cuda, address, &prop));
	if (known)
		*ret_identity = combine_numbers(buffer, block);
	return known;
}

int pier_cuda_identity(uint64_t address, uint64_t *ret_identity)
{
	struct pier_cuda *cuda = pier_cuda_if_loaded();

	return cuda && pier_cuda_read_identity(cuda, address, ret_identity) ? 0 : -ENOENT;
}

bool pier_cuda_was_freed(const struct pier_cuda_memory *memory)
{
	uint64_t identity = 0;

	return memory->identity &&
	       (!pier_cuda_read_identity(memory->cuda, memory->start, &identity) ||
		memory->identity != identity);
}

int pier_cuda_check_live(const struct pier_cuda_memory *memory)
{
	if (!pier_cuda_was_freed(memory))
		return 0;
	if (memory->own)
		return pier_fail(EINVAL,
				 "the memory at %#" PRIx64
				 " is gone since the application reset CUDA device %d "
				 "(cudaDeviceReset()): allocate it again",
				 memory->start, memory->device);
	return pier_fail(EINVAL,
			 "the memory at %#" PRIx64 " was freed after it was wrapped: "
			 "wrap what is there now",
			 memory->start);
}

struct pier_memory pier_cuda_describe(struct pier_cuda_memory *memory)
{
	return (struct pier_memory){
		.size = sizeof(struct pier_memory),
		.address = memory->address,
		.length = memory->length,
		.cpu = memory->cpu,
		.state = memory,
	};
}

int pier_cuda_enter_memory(const struct pier_cuda_memory *memory,
			   struct pier_cuda_saved *ret_saved)
{
	return pier_cuda_enter(memory->cuda, memory->device, memory->context, ret_saved);
}

int pier_cuda_enter_live(const struct pier_cuda_memory *memory,
			 struct pier_cuda_saved *ret_saved)
{
	int result = pier_cuda_enter_memory(memory, ret_saved);

	return result == 0 ? pier_cuda_check_live(memory) : result;
}

const char *pier_cuda_kind_name(enum pier_cuda_kind kind)
{
	static const char *const names[] = {
		[PIER_CUDA_LINEAR] = "cuMemAlloc",
		[PIER_CUDA_VMM] = "VMM",
		[PIER_CUDA_VMM_HOST] = "VMM on the host",
		[PIER_CUDA_POOL] = "stream-ordered pool",
		[PIER_CUDA_MANAGED] = "managed memory",
		[PIER_CUDA_HOST] = "page-locked host",
		[PIER_CUDA_OPENED] = "memory of another process",
	};

	return names[kind];
}

/* Memory that the application mapped with cuMemMap(), one mapping next to the other. */

/*
 * Some drivers do not find live mappings by cuMemGetAddressRange() (version 535 on a
 * P100). The attributes came with CUDA 11.3.
 */
CUresult pier_cuda_read_mapping(const struct pier_cuda *cuda, uint64_t address,
				uint64_t *ret_start, uint64_t *ret_length)
{
	CUdeviceptr start = 0;
	size_t length = 0;
	CUresult error = cuda->call.cuMemGetAddressRange(&start, &length, address);

	if (error != CUDA_SUCCESS &&
	    (!pier_cuda_read_attribute(cuda, address,
				       CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, &start) ||
	     !pier_cuda_read_attribute(cuda, address, CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
				       &length)))
		return error;
	if (address < start || address - start >= length)
		return CUDA_ERROR_NOT_MAPPED;
	*ret_start = start;
	*ret_length = length;
	return CUDA_SUCCESS;
}

static bool is_on_host(const CUmemAllocationProp *prop)
{
	return prop->location.type == CU_MEM_LOCATION_TYPE_HOST ||
	       prop->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
	       prop->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

static bool grants_access(const struct pier_cuda *cuda, uint64_t address,
			  unsigned int type, int id)
{
	CUmemLocation location = { .type = type, .id = id };
	unsigned long long flags = 0;

	return cuda->call.cuMemGetAccess(&flags, &location, address) == CUDA_SUCCESS &&
	       flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

/*
 * Even memory on the host is mapped for the CPU only after cuMemSetAccess() of the host,
 * or of the NUMA node that it was created on.
 */
static bool cpu_reaches(const struct pier_cuda *cuda, uint64_t address,
			const CUmemAllocationProp *prop)
{
	if (!is_on_host(prop) || !cuda->call.cuMemGetAccess)
		return false;
	return grants_access(cuda, address, prop->location.type, prop->location.id) ||
	       grants_access(cuda, address, CU_MEM_LOCATION_TYPE_HOST, 0);
}

static bool same_properties(const CUmemAllocationProp *a, const CUmemAllocationProp *b)
{
	return a->type == b->type && a->location.type == b->location.type &&
	       a->location.id == b->location.id &&
	       a->allocFlags.gpuDirectRDMACapable == b->allocFlags.gpuDirectRDMACapable;
}

/*
 * Add the segments that follow, up to the end of the wanted range.
 * cuMemGetHandleForAddressRange() may export them together (documentation: on one device,
 * with identical properties).
 */
static void add_segments(struct pier_cuda_memory *memory, uint64_t address,
			 uint64_t length, const CUmemAllocationProp *first)
{
	uint64_t wanted, end, start, span;

	if (!pier_add_u64(address, length, &wanted))
		wanted = UINT64_MAX;
	memory->segments = 1;
	for (end = memory->start + memory->start_length; end < wanted;
	     end = start + span) {
		CUmemAllocationProp next = { 0 };

		if (!read_properties(memory->cuda, end, &next) ||
		    !same_properties(first, &next) ||
		    cpu_reaches(memory->cuda, end, &next) != (memory->cpu != NULL) ||
		    pier_cuda_read_mapping(memory->cuda, end, &start, &span) !=
			    CUDA_SUCCESS ||
		    start != end)
			break;
		memory->segments++;
		memory->start_length += span;
	}
}

/*
 * Whether the driver granted GPUDirect RDMA, which cuMemCreate() may leave out without an
 * error (UCX's pull request 10007). Drivers without the attribute export no dma-bufs.
 */
bool pier_cuda_is_rdma_capable(const struct pier_cuda *cuda, uint64_t address)
{
	unsigned int capable = 0;

	return pier_cuda_read_attribute(cuda, address,
					CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
					&capable) &&
	       capable;
}

/*
 * Read the mapping at an address and those after it that have the same properties, up to
 * the end of a range.
 *
 * ret_error  CUDA_SUCCESS if the bounds of the first mapping are known
 *
 * Returns false if cuMemMap() mapped nothing there.
 */
static bool read_mappings(struct pier_cuda_memory *memory, uint64_t address,
			  uint64_t length, CUresult *ret_error)
{
	CUmemAllocationProp prop = { 0 };

	if (!read_properties(memory->cuda, address, &prop))
		return false;
	memory->kind = is_on_host(&prop) ? PIER_CUDA_VMM_HOST : PIER_CUDA_VMM;
	memory->rdma_capable = pier_cuda_is_rdma_capable(memory->cuda, address);
	*ret_error = pier_cuda_read_mapping(memory->cuda, address, &memory->start,
					    &memory->start_length);
	if (*ret_error != CUDA_SUCCESS)
		return true;
	if (cpu_reaches(memory->cuda, address, &prop))
		memory->cpu = (void *)(uintptr_t)memory->start;
	add_segments(memory, address, length, &prop);
	return true;
}

int pier_cuda_segment(const struct pier_memory *memory, uint64_t address,
		      uint64_t *ret_start, uint64_t *ret_length)
{
	struct pier_cuda_saved saved;
	const struct pier_cuda_memory *state = memory->state;
	char text[160];
	CUresult error = CUDA_SUCCESS;
	int result;

	if (!pier_cuda_is_mapped(state)) {
		*ret_start = state->address;
		*ret_length = state->length;
		return 0;
	}
	result = pier_cuda_enter_memory(state, &saved);
	if (result == 0)
		error = pier_cuda_read_mapping(state->cuda, address, ret_start,
					       ret_length);
	if (error != CUDA_SUCCESS) {
		pier_cuda_describe_error(state->cuda, error, text, sizeof(text));
		result = pier_fail(EINVAL,
				   "the CUDA driver finds no mapping at %#" PRIx64
				   " any more: cuMemGetAddressRange: %s",
				   address, text);
	}
	pier_cuda_leave(state->cuda, &saved);
	return result;
}

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

/* The attributes came with CUDA 10.2; cuMemGetAddressRange() knows device memory only. */
static CUresult read_range(struct pier_cuda_memory *memory, uint64_t address)
{
	const struct pier_cuda *cuda = memory->cuda;
	CUdeviceptr start = 0;
	size_t length = 0;
	CUresult error;

	if (!pier_cuda_read_attribute(cuda, address,
				      CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, &start) ||
	    !pier_cuda_read_attribute(cuda, address, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
				      &length) ||
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
	if (!pier_cuda_read_attribute(memory->cuda, address,
				      CU_POINTER_ATTRIBUTE_HOST_POINTER, &cpu) ||
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
	if (pier_cuda_read_attribute(memory->cuda, address,
				     CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, &pool) &&
	    pool) {
		memory->kind = PIER_CUDA_POOL;
		return read_range(memory, address);
	}
	if (read_mappings(memory, address, length, &error))
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
	struct pier_cuda_saved saved;
	int result = read_device(memory, pointer);
	CUresult error;

	if (result == 0)
		result = pier_cuda_enter_memory(memory, &saved);
	if (result != 0)
		return result;
	error = read_kind(memory, pointer, address, length);
	if (error == CUDA_SUCCESS)
		pier_cuda_read_identity(memory->cuda, memory->start, &memory->identity);
	pier_cuda_leave(memory->cuda, &saved);
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
