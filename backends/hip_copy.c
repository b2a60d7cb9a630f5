/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>

#include "hip.h"
#include "util/error.h"

static int copy(const struct pier_memory *memory, void *destination, const void *source,
		uint64_t length, unsigned int direction)
{
	const struct pier_hip_memory *state = memory->state;
	struct pier_hip_scope scope;
	unsigned int error;
	int result;

	if (pier_hip_on_host(state->kind)) {
		memcpy(destination, source, length);
		return 0;
	}
	if (pier_hip_inherited(state->hip))
		return pier_fail(EOPNOTSUPP,
				 "the memory was the parent's before fork(2), "
				 "and HIP cannot be used here");
	result = pier_hip_enter(state->hip, state->device, &scope);
	if (result == 0) {
		error = state->hip->hipMemcpy(destination, source, length, direction);
		if (error != PIER_HIP_SUCCESS)
			result = pier_hip_fail(
				state->hip, error, "copying %llu bytes %s device %d",
				(unsigned long long)length,
				direction == PIER_HIP_HOST_TO_DEVICE ? "to" : "from",
				state->device);
	}
	pier_hip_leave(state->hip, &scope);
	return result;
}

int pier_hip_copy_to(const struct pier_memory *memory, uint64_t offset,
		     const void *source, uint64_t length)
{
	return copy(memory, (void *)(uintptr_t)(memory->address + offset), source, length,
		    PIER_HIP_HOST_TO_DEVICE);
}

int pier_hip_copy_from(const struct pier_memory *memory, uint64_t offset,
		       void *destination, uint64_t length)
{
	return copy(memory, destination,
		    (const void *)(uintptr_t)(memory->address + offset), length,
		    PIER_HIP_DEVICE_TO_HOST);
}

/*
 * What comes over PCIe passes the device's host data path, which may keep it. Writing to
 * its register flushes it, and reading that waits for it, as clr does for what the
 * CPU writes (KernelArgImpl::DeviceKernelArgsHDP), and RCCL for what NICs write. A kernel
 * that is launched then begins by acquiring for the system, so that its caches have
 * nothing older. A device that is coherent with the CPU has no such register
 * (HSA_AMD_AGENT_INFO_HDP_FLUSH), and needs nothing. What is still on its way from a NIC
 * whose completion was seen is not waited for: PCIe has no order between that and the
 * CPU's reading, unless they share the way to the device.
 */
int pier_hip_flush(const struct pier_memory *memory)
{
	const struct pier_hip_memory *state = memory->state;

	if (!state->flush)
		return 0;
	if (pier_hip_inherited(state->hip))
		return pier_fail(EOPNOTSUPP,
				 "the memory was the parent's before fork(2), "
				 "and HIP cannot be used here");
	*state->flush = 1;
	(void)*state->flush;
	return 0;
}

int pier_hip_lock_host(const struct pier_memory *memory, void *addr, uint64_t length)
{
	const struct pier_hip_memory *state = memory->state;
	struct pier_hip_scope scope;
	unsigned int error;
	int result;

	if (pier_hip_inherited(state->hip))
		return pier_fail(EOPNOTSUPP, "HIP cannot be used after fork(2)");
	result = pier_hip_enter(state->hip, state->device, &scope);
	if (result == 0) {
		error = state->hip->hipHostRegister(addr, length,
						    PIER_HIP_REGISTER_PORTABLE);
		if (error != PIER_HIP_SUCCESS)
			result = pier_hip_fail(state->hip, error,
					       "locking %llu bytes at %p",
					       (unsigned long long)length, addr);
	}
	pier_hip_leave(state->hip, &scope);
	return result;
}

void pier_hip_unlock_host(const struct pier_memory *memory, void *addr)
{
	const struct pier_hip_memory *state = memory->state;
	struct pier_hip_scope scope;

	if (pier_hip_inherited(state->hip))
		return;
	pier_hip_enter(state->hip, state->device, &scope);
	state->hip->hipHostUnregister(addr);
	pier_hip_leave(state->hip, &scope);
}
