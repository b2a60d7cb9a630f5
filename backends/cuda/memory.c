/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>

#include "memory.h"
#include "core/fork.h"

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
