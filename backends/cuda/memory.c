/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>

#include "core/error.h"
#include "core/fork.h"
#include "driver.h"
#include "memory.h"

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

static struct {
	struct pier_fork_mutex lock;
	struct pier_list list;
} own_memory = {
	.lock = PIER_FORK_MUTEX,
	.list = { &own_memory.list, &own_memory.list },
};

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

void pier_cuda_add_own(struct pier_cuda_memory *memory)
{
	memory->own = true;
	memory->users = 1;
	pier_fork_lock(&own_memory.lock);
	pier_list_append(&own_memory.list, &memory->link);
	pier_fork_unlock(&own_memory.lock);
}

bool pier_cuda_find_own(uint64_t address, struct pier_memory *ret_memory)
{
	bool found = false;

	pier_fork_lock(&own_memory.lock);
	pier_list_for_each(link, &own_memory.list) {
		struct pier_cuda_memory *memory = pier_container_of(
			link, struct pier_cuda_memory, link);

		if (address < memory->address ||
		    address - memory->address >= memory->length)
			continue;
		memory->users++;
		*ret_memory = pier_cuda_describe(memory);
		found = true;
		break;
	}
	pier_fork_unlock(&own_memory.lock);
	return found;
}

bool pier_cuda_drop_own(struct pier_cuda_memory *memory)
{
	bool last;

	pier_fork_lock(&own_memory.lock);
	assert(memory->users > 0);
	last = --memory->users == 0;
	if (last)
		pier_list_remove(&memory->link);
	pier_fork_unlock(&own_memory.lock);
	return last;
}

int pier_cuda_enter_memory(const struct pier_cuda_memory *memory,
			   struct pier_cuda_scope *ret_scope)
{
	return pier_cuda_enter(memory->cuda, memory->device, memory->context, ret_scope);
}

const char *pier_cuda_kind_name(enum pier_cuda_kind kind)
{
	switch (kind) {
	case PIER_CUDA_LINEAR:
		return "cuMemAlloc";
	case PIER_CUDA_VMM:
		return "VMM";
	case PIER_CUDA_VMM_HOST:
		return "VMM on the host";
	case PIER_CUDA_POOL:
		return "stream-ordered pool";
	case PIER_CUDA_MANAGED:
		return "managed memory";
	case PIER_CUDA_HOST:
		return "page-locked host";
	case PIER_CUDA_OPENED:
		return "memory of another process";
	}
	return "unknown";
}
