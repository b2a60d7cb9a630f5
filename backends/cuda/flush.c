/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "driver.h"
#include "error.h"
#include "flush.h"
#include "memory.h"
#include "core/error.h"

static int flush_device(const struct pier_cuda_memory *memory)
{
	struct pier_cuda_scope scope;
	struct pier_cuda *cuda = memory->cuda;
	CUresult error;
	int result = PIER_CUDA_NEED(cuda, cuFlushGPUDirectRDMAWrites);

	if (result == 0)
		result = pier_cuda_enter_memory(memory, &scope);
	if (result != 0)
		return result;
	error = cuda->call.cuFlushGPUDirectRDMAWrites(
		CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
		CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
	if (error != CUDA_SUCCESS)
		result = pier_cuda_fail(cuda, error,
					"cuFlushGPUDirectRDMAWrites of CUDA device %d",
					memory->device);
	pier_cuda_leave(cuda, &scope);
	return result;
}

static bool can_flush(const struct pier_cuda_memory *state)
{
	return pier_cuda_attribute(
		       state->cuda, state->device,
		       CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS) &
	       CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST;
}

bool pier_cuda_flushes_alone(const struct pier_cuda_memory *memory)
{
	if (memory->on_no_device || pier_cuda_is_host(memory))
		return false;
	return can_flush(memory) ||
	       pier_cuda_attribute(memory->cuda, memory->device,
				   CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) >=
		       CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
}

/*
 * An attribute reports whether the device's own kernels see a NIC's writes in order. The
 * library does not care for kernels on other devices: programs that read this memory over
 * NVLink order that themselves.
 */
int pier_cuda_flush(const struct pier_memory *memory,
		    const struct pier_backend_flush *range)
{
	const struct pier_cuda_memory *state = memory->state;
	const struct pier_cuda *cuda = state->cuda;
	int ordering = 0;
	CUresult error;

	if (pier_cuda_is_host(state) || range->read_back)
		return 0;
	/*
	 * This mapping goes through PCIe where the CPU is attached by NVLink-C2C. There
	 * the completion takes another way than the data and can overtake it, whatever
	 * the attribute reports: NCCL forces a flush by the NIC (ncclTopoNeedFlush() in
	 * paths.cc). The CPU's flush goes through C2C, too.
	 */
	if (range->mapping == PIER_MAPPING_PCIE)
		return PIER_BACKEND_READ_BACK;
	error = cuda->call.cuDeviceGetAttribute(
		&ordering, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING,
		state->device);
	/* Before CUDA 11.3 the attribute does not exist, and the order is unknown. */
	if (error != CUDA_SUCCESS && error != CUDA_ERROR_INVALID_VALUE)
		return pier_cuda_fail(cuda, error,
				      "asking CUDA device %d how it orders writes",
				      state->device);
	if (ordering >= CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER)
		return 0;
	return can_flush(state) ? flush_device(state) : PIER_BACKEND_READ_BACK;
}
