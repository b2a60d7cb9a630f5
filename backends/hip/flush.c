/* SPDX-License-Identifier: BSD-3-Clause */
#include "flush.h"
#include "load.h"

/*
 * Writes over PCIe pass the device's host data path, which may hold them back. A write to
 * its register flushes it, and a read of the register waits for that. clr does this for
 * the CPU's writes (KernelArgImpl::DeviceKernelArgsHDP), and RCCL for a NIC's. A kernel
 * that is launched afterwards begins with a system-scope acquire, so its caches hold
 * nothing older. A device that is coherent with the CPU lacks the register
 * (HSA_AMD_AGENT_INFO_HDP_FLUSH), and needs no flush. This does not wait for writes that
 * are still on their way from a NIC whose completion was seen: PCIe does not order them
 * with the CPU's read, unless both take the same path to the device.
 */
int pier_hip_flush(const struct pier_memory *memory,
		   const struct pier_backend_flush *range)
{
	const struct pier_hip_memory *state = memory->state;
	int result;

	(void)range; /* the register flushes all of a device */
	if (!state->flush)
		return 0;
	result = pier_hip_check_owner(state->hip);
	if (result != 0)
		return result;
	*state->flush = 1;
	(void)*state->flush;
	return 0;
}
