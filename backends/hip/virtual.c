/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "device.h"
#include "load.h"
#include "virtual.h"
#include "core/checked.h"
#include "core/error.h"

/*
 * Memory that the application mapped with hipMemMap(), one segment next to the other, as
 * PyTorch's expandable segments are. HIP treats each as an allocation of its own, for
 * bounds, copies and exports.
 */

bool pier_hip_read_segment(const struct pier_hip *hip, uint64_t address,
			   uint64_t *ret_start, uint64_t *ret_length)
{
	void *base = NULL;
	size_t size = 0;

	if (hip->hipMemGetAddressRange(&base, &size, (void *)(uintptr_t)address) !=
		    PIER_HIP_SUCCESS ||
	    !pier_range_fits(address - (uint64_t)(uintptr_t)base, 1, size))
		return false;
	*ret_start = (uint64_t)(uintptr_t)base;
	*ret_length = size;
	return true;
}

static bool is_next(const struct pier_hip *hip, uint64_t address, int device)
{
	struct pier_hsa_pointer_info info;
	int owner = -1;

	return pier_hip_ask_hsa(hip, address, &info) && pier_hip_is_mapped(&info) &&
	       hip->hipPointerGetAttribute(&owner, PIER_HIP_DEVICE_ORDINAL,
					   (void *)(uintptr_t)address) ==
		       PIER_HIP_SUCCESS &&
	       owner == device;
}

void pier_hip_add_segments(struct pier_memory *memory, uint64_t wanted)
{
	struct pier_hip_memory *state = memory->state;
	uint64_t end, start, length;

	state->segments = 1;
	if (state->kind != PIER_HIP_VIRTUAL)
		return;
	for (end = memory->address + memory->length; end < wanted; end = start + length) {
		if (!is_next(state->hip, end, state->device) ||
		    !pier_hip_read_segment(state->hip, end, &start, &length) ||
		    start != end)
			break;
		state->segments++;
		memory->length += length;
	}
}

/*
 * Runtime::DmaBufExport() in ROCr knows allocations only, and none of what
 * hsa_amd_vmem_map() mapped. The handle of such memory is found by the first address of
 * its mapping (Runtime::VMemoryRetainAllocHandle()). Its dma-buf is all of the
 * allocation, which is mapped from offset 0 on: hipMemMap() accepts no other. The release
 * undoes the retain alone; mappings and the dma-buf keep the memory.
 */
unsigned int pier_hip_export_segment(const struct pier_hip *hip, uint64_t address,
				     uint64_t length, int *ret_fd, uint64_t *ret_offset)
{
	struct pier_hsa_vmem_handle handle = { 0 };
	uint64_t start, size;
	unsigned int status;

	if (!pier_hip_read_segment(hip, address, &start, &size) ||
	    !pier_range_fits(address - start, length, size))
		return PIER_HSA_INVALID_ALLOCATION;
	status = hip->hsa_amd_vmem_retain_alloc_handle(&handle, (void *)(uintptr_t)start);
	if (status != PIER_HSA_SUCCESS)
		return status;
	status = hip->hsa_amd_vmem_export_shareable_handle(ret_fd, handle, 0);
	hip->hsa_amd_vmem_handle_release(handle);
	*ret_offset = address - start;
	return status;
}

int pier_hip_segment(const struct pier_memory *memory, uint64_t address,
		     uint64_t *ret_start, uint64_t *ret_length)
{
	const struct pier_hip_memory *state = memory->state;
	struct pier_hip_scope scope;
	bool known;

	if (state->kind != PIER_HIP_VIRTUAL) {
		*ret_start = memory->address;
		*ret_length = memory->length;
		return 0;
	}
	if (pier_hip_inherited(state->hip))
		return pier_fail(EOPNOTSUPP, "HIP cannot be used after fork(2)");
	pier_hip_enter(state->hip, -1, &scope);
	known = pier_hip_read_segment(state->hip, address, ret_start, ret_length);
	pier_hip_leave(state->hip, &scope);
	if (known)
		return 0;
	return pier_fail(EFAULT, "nothing is mapped at %#llx any more",
			 (unsigned long long)address);
}
