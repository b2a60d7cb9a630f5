/* SPDX-License-Identifier: BSD-3-Clause */
#include "flush.h"
#include "load.h"

/*
 * The NIC's completion goes to the host and its writes to the device, so PCIe does not
 * order the two: only a read by the NIC waits for the writes. RCCL reads through the NIC
 * after each receive, on every AMD device (ncclTopoNeedFlush() is 1; ncclIbIflush()).
 *
 * Writes over PCIe then pass the device's host data path, which may hold them back. A
 * write to its register flushes it, and a read of the register waits for that: clr does
 * this for the CPU's writes (KernelArgImpl::DeviceKernelArgsHDP in rocvirtual.cpp), and
 * RCCL before a NIC reads (sendProxyProgress() in net.cc). A device that is coherent with
 * the CPU lacks the register (HSA_AMD_AGENT_INFO_HDP_FLUSH), and needs no such flush.
 *
 * Neither discards what the device's L2 caches hold. clr launches kernels with an acquire
 * of the agent's scope (AMD_OPT_FLUSH is 1 in flags.hpp), which does not reach them. They
 * drop the lines that PCIe writes if the device makes such requests coherent (LLVM's
 * AMDGPUUsage, memory model of gfx90a). A kernel that is running already may read older
 * bytes from its L1 caches, except of fine-grained memory.
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
	/* Several threads may flush at once. */
	__atomic_store_n(state->flush, 1, __ATOMIC_RELAXED);
	(void)__atomic_load_n(state->flush, __ATOMIC_RELAXED);
	return 0;
}
