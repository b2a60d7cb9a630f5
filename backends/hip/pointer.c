/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "device.h"
#include "load.h"
#include "pointer.h"
#include "virtual.h"
#include "core/checked.h"
#include "core/error.h"

/*
 * Recognise pointers. HSA reports which call made the memory and on which agent, with
 * numbers that are the same in all versions. HIP reports the bounds, because HSA's bounds
 * of mapped memory are wrong (VMemoryPtrInfo() in ROCr takes the pointer for the base),
 * and HIP's own facts: managed memory, the device's ordinal.
 */

static bool is_managed(const struct pier_hip *hip, uint64_t address)
{
	bool managed = false;

	return hip->hipPointerGetAttribute(&managed, PIER_HIP_IS_MANAGED,
					   (void *)(uintptr_t)address) ==
		       PIER_HIP_SUCCESS &&
	       managed;
}

/*
 * Memory of a pool is what the pool is made of: memory of hipMalloc(), or since 2025
 * pieces of memory that is mapped (MemoryPool::AllocateMemory() in clr's
 * hip_mempool_impl.cpp). clr does not report pools: HIP_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
 * is not supported.
 */
static enum pier_hip_kind find_kind(const struct pier_hip *hip, uint64_t address,
				    const struct pier_hsa_pointer_info *info)
{
	if (is_managed(hip, address))
		return PIER_HIP_MANAGED;
	if (pier_hip_is_mapped(info))
		return PIER_HIP_VIRTUAL;
	switch (info->type) {
	case PIER_HSA_POINTER_LOCKED:
		return PIER_HIP_REGISTERED;
	case PIER_HSA_POINTER_GRAPHICS:
		return PIER_HIP_GRAPHICS;
	case PIER_HSA_POINTER_IPC:
		return PIER_HIP_IPC;
	}
	if (info->type == PIER_HSA_POINTER_HSA && !pier_hip_is_on_gpu(hip, info))
		return PIER_HIP_HOST;
	return info->global_flags & PIER_HSA_FINE_GRAINED ? PIER_HIP_FINE
							  : PIER_HIP_DEVICE;
}

/*
 * HIP reports the requested size. The allocation has whole pages
 * (Runtime::AllocateMemory() rounds up), and ROCr exports any of them.
 */
static uint64_t whole_pages(enum pier_hip_kind kind, uint64_t base, uint64_t size)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), rounded;

	if (pier_hip_on_host(kind) || base % page ||
	    !pier_round_up_u64(size, page, &rounded))
		return size;
	return rounded;
}

static int find_bounds(const struct pier_hip *hip, uint64_t address,
		       const struct pier_hsa_pointer_info *info, void **ret_base,
		       size_t *ret_size)
{
	unsigned int error;

	if (info->type == PIER_HSA_POINTER_LOCKED) {
		*ret_base = info->host_base;
		*ret_size = info->length;
		return 0;
	}
	error = hip->hipMemGetAddressRange(ret_base, ret_size,
					   (void *)(uintptr_t)address);
	/*
	 * If HMM lets devices reach all memory of the process, clr reports memory that it
	 * has not allocated as part of one object, which begins at kArenaMemoryPtr
	 * (0x100) and has no end.
	 */
	if (error == PIER_HIP_SUCCESS)
		return *ret_size == SIZE_MAX ? -ENOENT : 0;
	/*
	 * Memory of a GPU that HIP does not know (a library has it from HSA) is not host
	 * memory.
	 */
	if (pier_hip_errno(error) == EINVAL && info->type == PIER_HSA_POINTER_HSA &&
	    pier_hip_is_on_gpu(hip, info) &&
	    pier_range_fits(address - (uint64_t)(uintptr_t)info->agent_base, 1,
			    info->length)) {
		*ret_base = info->agent_base;
		*ret_size = info->length;
		return 0;
	}
	if (info->type == PIER_HSA_POINTER_UNKNOWN || pier_hip_errno(error) == EINVAL ||
	    pier_hip_errno(error) == EFAULT)
		return -ENOENT;
	return pier_hip_fail(hip, error, "asking for the allocation at %#llx",
			     (unsigned long long)address);
}

static int describe_pointer(const struct pier_hip *hip, uint64_t address, uint64_t length,
			    const struct pier_hsa_pointer_info *info,
			    struct pier_memory *ret_memory)
{
	struct pier_hip_memory *state;
	uint64_t end;
	void *base = NULL;
	size_t size = 0;
	int result = find_bounds(hip, address, info, &base, &size);

	if (result != 0)
		return result;
	state = calloc(1, sizeof(*state));
	if (!state)
		return pier_fail(ENOMEM, "no memory for the description of memory");
	state->hip = hip;
	state->kind = find_kind(hip, address, info);
	pier_hip_read_number(hip, (uint64_t)(uintptr_t)base, &state->number);
	/* HIP returns -2 for memory of no device. */
	if (hip->hipPointerGetAttribute(&state->device, PIER_HIP_DEVICE_ORDINAL,
					(void *)(uintptr_t)address) != PIER_HIP_SUCCESS ||
	    state->device < 0)
		state->device = 0;
	if (!pier_hip_on_host(state->kind))
		state->flush = pier_hip_flush_register(hip, state->device);
	*ret_memory = (struct pier_memory){
		.size = sizeof(struct pier_memory),
		.address = (uint64_t)(uintptr_t)base,
		.length = whole_pages(state->kind, (uint64_t)(uintptr_t)base, size),
		.cpu = pier_hip_on_host(state->kind) ? base : NULL,
		.state = state,
	};
	if (!pier_add_u64(address, length, &end))
		end = address;
	pier_hip_add_segments(ret_memory, end);
	return 0;
}

/*
 * Memory that hipHostRegister() locked may lie within a larger piece of host memory. It
 * counts as HIP's only if the wanted range lies inside the locked one.
 */
static bool leaves_locked_range(const struct pier_hsa_pointer_info *info,
				uint64_t address, uint64_t length)
{
	uint64_t base = (uint64_t)(uintptr_t)info->host_base;

	return info->type == PIER_HSA_POINTER_LOCKED &&
	       (address < base || !pier_range_fits(address - base, length, info->length));
}

int pier_hip_find(uint64_t address, uint64_t length, struct pier_memory *ret_memory)
{
	const struct pier_hip *hip = pier_hip_opened();
	struct pier_hsa_pointer_info info;
	struct pier_hip_scope scope;
	int result;

	if (!hip || pier_hip_inherited(hip) || !pier_hip_ask_hsa(hip, address, &info) ||
	    leaves_locked_range(&info, address, length))
		return -ENOENT;
	result = pier_hip_enter(hip, -1, &scope);
	if (result == 0)
		result = describe_pointer(hip, address, length, &info, ret_memory);
	pier_hip_leave(hip, &scope);
	return result;
}

void pier_hip_release(struct pier_memory *memory)
{
	free(memory->state);
}

int pier_hip_identity(uint64_t address, uint64_t *ret_identity)
{
	const struct pier_hip *hip = pier_hip_opened();
	struct pier_hsa_pointer_info info;
	struct pier_hip_scope scope;
	uint64_t number;

	if (!hip || pier_hip_inherited(hip) || !pier_hip_ask_hsa(hip, address, &info))
		return -ENOENT;
	pier_hip_enter(hip, -1, &scope);
	pier_hip_read_number(hip, address, &number);
	pier_hip_leave(hip, &scope);
	if (number == 0)
		return -ENOENT;
	*ret_identity = number;
	return 0;
}
