/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "memory.h"
#include "core/error.h"

#define OTHERWISE                                                                        \
	"allocate what the NIC shall reach with hipMalloc() or pier_buffer_alloc(), or " \
	"allow a bounce buffer"

static const struct {
	const char *name;
	const char *no_export;
} kinds[] = {
	[PIER_HIP_DEVICE] = { "hipMalloc", "" },
	[PIER_HIP_FINE] = { "fine-grained device memory", "" },
	[PIER_HIP_HOST] = { "page-locked host memory",
			    "it is host memory, which ROCm does not export: register "
			    "it as such" },
	[PIER_HIP_REGISTERED] = { "registered host memory",
				  "it is host memory, which ROCm does not export: "
				  "register it as such" },
	[PIER_HIP_MANAGED] = { "managed memory",
			       "its pages move between host and device; " OTHERWISE },
	[PIER_HIP_VIRTUAL] = { "hipMemMap", "" },
	/*
	 * ROCr records no owner for it (Runtime::IPCAttach()), and
	 * Runtime::DmaBufExport() relies on the owner without a check.
	 */
	[PIER_HIP_IPC] = { "memory of another process",
			   "only the process that allocated it can export it" },
	[PIER_HIP_GRAPHICS] = { "memory of a graphics interface",
				"only the interface that allocated it can export it" },
};

bool pier_hip_on_host(enum pier_hip_kind kind)
{
	return kind == PIER_HIP_HOST || kind == PIER_HIP_REGISTERED;
}

void pier_hip_describe(const struct pier_memory *memory,
		       struct pier_memory_facts *ret_facts)
{
	const struct pier_hip_memory *state = memory->state;

	snprintf(ret_facts->kind, sizeof(ret_facts->kind), "%s", kinds[state->kind].name);
	if (state->segments > 1)
		snprintf(ret_facts->kind, sizeof(ret_facts->kind),
			 "%s, %" PRIu32 " segments", kinds[state->kind].name,
			 state->segments);
	snprintf(ret_facts->unit, sizeof(ret_facts->unit), "%d", state->device);
	snprintf(ret_facts->no_export, sizeof(ret_facts->no_export), "%s",
		 kinds[state->kind].no_export[0] ? kinds[state->kind].no_export
						 : state->hip->kernel_reason);
	ret_facts->host = pier_hip_on_host(state->kind);
	ret_facts->moves = state->kind == PIER_HIP_MANAGED;
	/*
	 * Both mappings go over PCIe. Only with the flag does Runtime::DmaBufExport()
	 * refuse a device whose BAR does not reach all of its memory.
	 */
	if (state->hip->hsa_amd_portable_export_dmabuf_v2)
		ret_facts->mapping = PIER_MAPPING_PCIE;
}

unsigned int pier_hip_read_number(const struct pier_hip *hip, uint64_t address,
				  uint64_t *ret_number)
{
	*ret_number = 0;
	return hip->hipPointerGetAttribute(ret_number, PIER_HIP_BUFFER_ID,
					   (void *)(uintptr_t)address);
}

int pier_hip_check_live(const struct pier_memory *memory)
{
	const struct pier_hip_memory *state = memory->state;
	uint64_t number;
	unsigned int error;

	if (!state->number)
		return 0;
	error = pier_hip_read_number(state->hip, memory->address, &number);
	if (error == PIER_HIP_SUCCESS && number == state->number)
		return 0;
	/* Other errors do not concern liveness: the caller's next call reports them. */
	if (error != PIER_HIP_SUCCESS && error != PIER_HIP_INVALID_VALUE &&
	    error != PIER_HIP_INVALID_DEVICE_POINTER)
		return 0;
	return pier_fail(EFAULT,
			 "the memory at %#llx was freed after it was wrapped: wrap what "
			 "is there now",
			 (unsigned long long)memory->address);
}
