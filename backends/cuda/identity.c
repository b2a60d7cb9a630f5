/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>

#include "driver.h"
#include "identity.h"
#include "core/error.h"

/* Memory of cuMemMap(); only that has a handle to retain. */
static bool is_mapped(const struct pier_cuda *cuda, uint64_t address)
{
	CUmemGenericAllocationHandle handle;

	if (!cuda->call.cuMemRetainAllocationHandle ||
	    cuda->call.cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)address) !=
		    CUDA_SUCCESS)
		return false;
	cuda->call.cuMemRelease(handle);
	return true;
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
	bool known, has_block;

	known = cuda->call.cuPointerGetAttribute(&buffer, CU_POINTER_ATTRIBUTE_BUFFER_ID,
						 address) == CUDA_SUCCESS;
	has_block = cuda->call.cuPointerGetAttribute(&block,
						     CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID,
						     address) == CUDA_SUCCESS;
	known = has_block || (known && !is_mapped(cuda, address));
	if (known)
		*ret_identity = buffer * UINT64_C(0x9e3779b97f4a7c15) + block;
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
