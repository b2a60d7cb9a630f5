/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>

#include "driver.h"
#include "mapping.h"
#include "core/checked.h"
#include "core/error.h"

/* Memory that the application mapped with cuMemMap(), one mapping next to the other. */

/*
 * Some drivers do not find live mappings by cuMemGetAddressRange() (version 535 on a
 * P100). The attributes came with CUDA 11.3.
 */
static bool read_attributes(const struct pier_cuda *cuda, uint64_t address,
			    CUdeviceptr *ret_start, size_t *ret_length)
{
	return cuda->call.cuPointerGetAttribute(ret_start,
						CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
						address) == CUDA_SUCCESS &&
	       cuda->call.cuPointerGetAttribute(ret_length,
						CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
						address) == CUDA_SUCCESS;
}

CUresult pier_cuda_read_mapping(const struct pier_cuda *cuda, uint64_t address,
				uint64_t *ret_start, uint64_t *ret_length)
{
	CUdeviceptr start = 0;
	size_t length = 0;
	CUresult error = cuda->call.cuMemGetAddressRange(&start, &length, address);

	if (error != CUDA_SUCCESS && !read_attributes(cuda, address, &start, &length))
		return error;
	if (address < start || address - start >= length)
		return CUDA_ERROR_NOT_MAPPED;
	*ret_start = start;
	*ret_length = length;
	return CUDA_SUCCESS;
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

	return cuda->call.cuPointerGetAttribute(
		       &capable, CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
		       address) == CUDA_SUCCESS &&
	       capable;
}

bool pier_cuda_read_mappings(struct pier_cuda_memory *memory, uint64_t address,
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
	struct pier_cuda_scope scope;
	const struct pier_cuda_memory *state = memory->state;
	char text[160];
	CUresult error;
	int result;

	if (!pier_cuda_is_mapped(state)) {
		*ret_start = state->address;
		*ret_length = state->length;
		return 0;
	}
	result = pier_cuda_enter_memory(state, &scope);
	if (result != 0)
		return result;
	error = pier_cuda_read_mapping(state->cuda, address, ret_start, ret_length);
	if (error != CUDA_SUCCESS) {
		pier_cuda_describe_error(state->cuda, error, text, sizeof(text));
		result = pier_fail(EINVAL,
				   "the CUDA driver finds no mapping at %#" PRIx64
				   " any more: cuMemGetAddressRange: %s",
				   address, text);
	}
	pier_cuda_leave(state->cuda, &scope);
	return result;
}
