/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>

#include "alloc.h"
#include "copy.h"
#include "driver.h"
#include "export.h"
#include "memory.h"
#include "ipc.h"
#include "unit.h"

static int probe_cuda(char *ret_detail, size_t size)
{
	struct pier_cuda *cuda;
	int result = pier_cuda_try_open(&cuda, ret_detail, size);
	int count;

	if (result != 0)
		return result;
	count = atomic_load(&cuda->device_count);
	snprintf(ret_detail, size,
		 "%d device%s, driver of CUDA %d.%d; units: N, N:linear, N:vmm, "
		 "N:vmm:SIZE, "
		 "N:pool, N:host",
		 count, count == 1 ? "" : "s", cuda->version / 1000,
		 cuda->version % 1000 / 10);
	return 0;
}

static void describe_cuda(const struct pier_memory *memory,
			  struct pier_memory_facts *ret_facts)
{
	const struct pier_cuda_memory *state = memory->state;
	const char *alike;

	if (state->segments > 1)
		snprintf(ret_facts->kind, sizeof(ret_facts->kind), "%s, %u segments",
			 pier_cuda_kind_name(state->kind), state->segments);
	else
		snprintf(ret_facts->kind, sizeof(ret_facts->kind), "%s",
			 pier_cuda_kind_name(state->kind));
	if (!state->on_no_device)
		snprintf(ret_facts->unit, sizeof(ret_facts->unit), "%d", state->device);
	pier_cuda_explain_export(state, ret_facts->no_export,
				 sizeof(ret_facts->no_export));
	ret_facts->host = pier_cuda_is_host(state);
	ret_facts->moves = state->kind == PIER_CUDA_MANAGED;
	ret_facts->coherent = pier_cuda_is_coherent(state);
	alike = state->kind == PIER_CUDA_VMM	  ? "vmm"
		: !ret_facts->coherent		  ? NULL
		: state->kind == PIER_CUDA_LINEAR ? "linear"
		: state->kind == PIER_CUDA_POOL	  ? "pool"
						  : NULL;
	if (alike)
		snprintf(ret_facts->alike, sizeof(ret_facts->alike), "%d:%s",
			 state->device, alike);
	ret_facts->any_order = pier_cuda_flushes_alone(state);
	pier_cuda_suggest_remedy(state, ret_facts->remedy, sizeof(ret_facts->remedy));
}

const struct pier_backend pier_cuda_backend = {
	.abi = PIER_BACKEND_ABI,
	.size = sizeof(struct pier_backend),
	.name = "cuda",
	.description =
		"memory of NVIDIA's GPUs (unit N), or page-locked for them (N:host)",
	.dmabuf = true,
	.mappings = true,
	.probe = probe_cuda,
	.alloc = pier_cuda_alloc,
	.free = pier_cuda_put,
	.find = pier_cuda_find,
	.release = pier_cuda_put,
	.export_range = pier_cuda_export,
	.close_export = pier_cuda_close_export,
	.copy_to = pier_cuda_copy_to,
	.copy_from = pier_cuda_copy_from,
	.flush = pier_cuda_flush,
	.locate = pier_cuda_locate,
	.identity = pier_cuda_identity,
	.describe = describe_cuda,
	.segment = pier_cuda_segment,
	.unit = pier_cuda_unit,
	.lock_host = pier_cuda_lock_host,
	.unlock_host = pier_cuda_unlock_host,
	.expose = pier_cuda_expose,
	.copy_start = pier_cuda_copy_start,
	.copy_query = pier_cuda_copy_query,
	.warm_up = pier_cuda_warm_up,
	.ipc_export = pier_cuda_ipc_export,
	.ipc_open = pier_cuda_ipc_open,
	.copy_between = pier_cuda_copy_between,
};
