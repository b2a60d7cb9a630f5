/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>

#include "driver.h"
#include "error.h"
#include "mapping.h"
#include "vmm.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/log.h"

/* A failure here leaks a mapping until the process ends: log it. */
static void warn_of_failure(const struct pier_cuda *cuda, CUresult error,
			    const char *step, uint64_t address)
{
	char text[160];

	if (error == CUDA_SUCCESS)
		return;
	pier_cuda_describe_error(cuda, error, text, sizeof(text));
	pier_warning("%s of %#" PRIx64 ": %s", step, address, text);
}

/*
 * A NIC can reach the memory only if it is created with gpuDirectRDMACapable, which is a
 * request: the driver may grant it or not.
 */
static CUmemAllocationProp read_properties(const struct pier_cuda_memory *memory)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {
			.type = CU_MEM_LOCATION_TYPE_DEVICE,
			.id = memory->device,
		},
	};

	prop.allocFlags.gpuDirectRDMACapable =
		pier_cuda_attribute(
			memory->cuda, memory->device,
			CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) > 0;
	return prop;
}

static int choose_segment(struct pier_cuda_memory *memory,
			  const CUmemAllocationProp *prop, uint64_t length,
			  uint64_t segment)
{
	struct pier_cuda *cuda = memory->cuda;
	size_t granularity = 0;
	uint64_t total;
	CUresult error = cuda->call.cuMemGetAllocationGranularity(
		&granularity, prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);

	if (error != CUDA_SUCCESS)
		return pier_cuda_fail(cuda, error,
				      "cuMemGetAllocationGranularity of CUDA device %d",
				      memory->device);
	/* The documentation does not promise a power of two. */
	if (granularity == 0 || segment % granularity)
		return pier_fail(EINVAL,
				 "segments of %" PRIu64 " bytes: on CUDA device %d they "
				 "are multiples of %zu bytes",
				 segment, memory->device, granularity);
	if (segment == 0 &&
	    !pier_mul_u64((length - 1) / granularity + 1, granularity, &segment))
		segment = UINT64_MAX;
	if (!pier_mul_u64((length - 1) / segment + 1, segment, &total) ||
	    total > INT64_MAX || total / segment > UINT32_MAX)
		return pier_fail(ENOMEM, "%" PRIu64 " bytes are more than a device has",
				 length);
	memory->segment = segment;
	memory->start_length = total;
	return 0;
}

/* Release the handle at once: the mapping keeps the memory. */
static int map_segment(struct pier_cuda_memory *memory, const CUmemAllocationProp *prop)
{
	uint64_t address = memory->start + memory->segments * memory->segment;
	struct pier_cuda *cuda = memory->cuda;
	CUmemGenericAllocationHandle handle;
	CUresult error;

	error = cuda->call.cuMemCreate(&handle, memory->segment, prop, 0);
	if (error != CUDA_SUCCESS)
		return pier_cuda_fail(
			cuda, error, "cuMemCreate of %" PRIu64 " bytes on CUDA device %d",
			memory->segment, memory->device);
	error = cuda->call.cuMemMap(address, memory->segment, 0, handle, 0);
	warn_of_failure(cuda, cuda->call.cuMemRelease(handle), "cuMemRelease", address);
	if (error != CUDA_SUCCESS)
		return pier_cuda_fail(cuda, error,
				      "cuMemMap of %" PRIu64 " bytes on CUDA device %d",
				      memory->segment, memory->device);
	memory->segments++;
	return 0;
}

static int map_all(struct pier_cuda_memory *memory, const CUmemAllocationProp *prop)
{
	struct pier_cuda *cuda = memory->cuda;
	CUmemAccessDesc access = {
		.location = prop->location,
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	CUresult error;
	int result = 0;

	while (result == 0 && memory->segments * memory->segment < memory->start_length)
		result = map_segment(memory, prop);
	if (result != 0)
		return result;
	error = cuda->call.cuMemSetAccess(memory->start, memory->start_length, &access,
					  1);
	if (error != CUDA_SUCCESS)
		return pier_cuda_fail(cuda, error, "cuMemSetAccess on CUDA device %d",
				      memory->device);
	return 0;
}

static int check_support(struct pier_cuda_memory *memory)
{
	int result = PIER_CUDA_NEED(memory->cuda, cuMemCreate);

	if (result == 0 &&
	    pier_cuda_attribute(
		    memory->cuda, memory->device,
		    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 0)
		result = pier_fail(EOPNOTSUPP,
				   "CUDA device %d has no virtual memory management: use "
				   "cuda:%d instead of cuda:%d:vmm",
				   memory->device, memory->device, memory->device);
	return result;
}

int pier_cuda_vmm_alloc(struct pier_cuda_memory *memory, uint64_t length,
			uint64_t segment)
{
	struct pier_cuda *cuda = memory->cuda;
	CUmemAllocationProp prop = read_properties(memory);
	CUdeviceptr start = 0;
	CUresult error;
	int result = check_support(memory);

	if (result == 0)
		result = choose_segment(memory, &prop, length, segment);
	if (result != 0)
		return result;
	error = cuda->call.cuMemAddressReserve(&start, memory->start_length, 0, 0, 0);
	if (error != CUDA_SUCCESS)
		return pier_cuda_fail(cuda, error,
				      "cuMemAddressReserve of %" PRIu64 " bytes",
				      memory->start_length);
	memory->start = start;
	result = map_all(memory, &prop);
	if (result != 0)
		pier_cuda_vmm_free(memory);
	else
		memory->rdma_capable = pier_cuda_is_rdma_capable(cuda, start);
	return result;
}

void pier_cuda_vmm_free(struct pier_cuda_memory *memory)
{
	struct pier_cuda *cuda = memory->cuda;

	/* Some versions cannot unmap several mappings with one call. */
	while (memory->segments > 0) {
		uint64_t address = memory->start + --memory->segments * memory->segment;

		warn_of_failure(cuda, cuda->call.cuMemUnmap(address, memory->segment),
				"cuMemUnmap", address);
	}
	warn_of_failure(cuda,
			cuda->call.cuMemAddressFree(memory->start, memory->start_length),
			"cuMemAddressFree", memory->start);
}
