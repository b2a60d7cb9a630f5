/* SPDX-License-Identifier: BSD-3-Clause */
#include "flush.h"
#include "load.h"

/*
 * The NIC's completion goes to the host and its writes to the device, so PCIe does not
 * order the two: only a read by the NIC waits for the writes. RCCL flushes everything
 * that it receives in this way, on every AMD device (ncclTopoNeedFlush() in paths.cc).
 *
 * Writes over PCIe then pass the device's host data path, which may hold them back. A
 * write to its register flushes it, and a read of the register waits for that: clr does
 * this for the CPU's writes (KernelArgImpl::DeviceKernelArgsHDP), and RCCL before it lets
 * a NIC read (sendProxyProgress() in net.cc). A device that is coherent with the CPU
 * lacks the register (HSA_AMD_AGENT_INFO_HDP_FLUSH), and needs no such flush.
 */
int pier_hip_flush(const struct pier_memory *memory,
		   const struct pier_backend_flush *range)
{
	const struct pier_hip_memory *state = memory->state;
	int result;

	if (pier_hip_on_host(state->kind))
		return 0;
	if (!range->read_back)
		return PIER_BACKEND_READ_BACK;
	if (!state->flush)
		return 0;
	result = pier_hip_check_owner(state->hip);
	if (result != 0)
		return result;
	*state->flush = 1;
	(void)*state->flush;
	return 0;
}
