/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>

#include "alloc.h"
#include "copy.h"
#include "device.h"
#include "export.h"
#include "load.h"
#include "pointer.h"
#include "virtual.h"
#include "core/error.h"

static int hip_locate(const struct pier_memory *memory, char ret_pci[16],
		      int *ret_numa_node)
{
	const struct pier_hip_memory *state = memory->state;
	struct pier_hip_scope scope;

	ret_pci[0] = '\0';
	*ret_numa_node = -1;
	if (pier_hip_on_host(state->kind) || pier_hip_inherited(state->hip))
		return 0;
	pier_hip_enter(state->hip, -1, &scope);
	pier_hip_locate(state->hip, state->device, ret_pci);
	pier_hip_leave(state->hip, &scope);
	return 0;
}

static void describe_unit(const struct pier_hip *hip, int device,
			  struct pier_backend_unit *ret_unit)
{
	struct pier_backend_unit unit = { .size = sizeof(unit), .numa_node = -1 };
	size_t total = 0;

	snprintf(unit.unit, sizeof(unit.unit), "%d", device);
	if (hip->hipDeviceGetName(unit.name, sizeof(unit.name), device) !=
	    PIER_HIP_SUCCESS)
		snprintf(unit.name, sizeof(unit.name), "HIP device %d", device);
	unit.name[sizeof(unit.name) - 1] = '\0';
	pier_hip_locate(hip, device, unit.pci);
	if (hip->hipDeviceTotalMem(&total, device) == PIER_HIP_SUCCESS)
		snprintf(unit.detail, sizeof(unit.detail), "%zu MiB", total >> 20);
	*ret_unit = unit;
}

static int hip_unit(uint32_t index, struct pier_backend_unit *ret_unit)
{
	const struct pier_hip *hip = NULL;
	struct pier_hip_scope scope;
	int count = 0, result;

	if (pier_hip_open(&hip) != 0)
		return -ENOENT;
	result = pier_hip_enter(hip, -1, &scope);
	if (result == 0 && pier_hip_count_devices(hip, &count) != 0)
		count = 0;
	if (index < (uint32_t)count)
		describe_unit(hip, (int)index, ret_unit);
	else
		result = -ENOENT;
	pier_hip_leave(hip, &scope);
	return result;
}

static bool lacks_functions(const struct pier_hip *hip)
{
	return !hip->hsa_amd_portable_close_dmabuf ||
	       (!hip->hsa_amd_portable_export_dmabuf &&
		!hip->hsa_amd_portable_export_dmabuf_v2);
}

/* ret_more  what follows it, or "" */
static const char *describe_export(const struct pier_hip *hip, const char **ret_more)
{
	bool supported = true;

	*ret_more = "";
	if (lacks_functions(hip))
		return "no dma-bufs: this ROCm is too old for them";
	if (hip->hsa_system_get_info(PIER_HSA_SYSTEM_DMABUF, &supported) ==
		    PIER_HSA_SUCCESS &&
	    !supported)
		return "no dma-bufs: the kernel's amdgpu driver is too old for them";
	if (hip->kernel_reason[0]) {
		*ret_more = hip->kernel_reason;
		return "no dma-bufs: ";
	}
	if (!hip->kernel_known)
		*ret_more = "; no configuration of the kernel can be read, so the canary "
			    "decides whether a NIC reaches the memory";
	return hip->hsa_amd_portable_export_dmabuf_v2
		       ? "dma-bufs, by the default mapping or over PCIe"
		       : "dma-bufs, by the default mapping alone";
}

static int probe_devices(char *ret_detail, size_t size)
{
	const struct pier_hip *hip = NULL;
	struct pier_hip_scope scope;
	const char *exports, *more;
	char version[32];
	int count = 0, result;

	result = pier_hip_open(&hip);
	if (result != 0)
		return result;
	result = pier_hip_enter(hip, -1, &scope);
	if (result == 0)
		result = pier_hip_count_devices(hip, &count);
	if (result == 0) {
		pier_hip_version(hip, version, sizeof(version));
		exports = describe_export(hip, &more);
		snprintf(ret_detail, size, "%d device%s, HIP %s; %s%s", count,
			 count == 1 ? "" : "s", version, exports, more);
	}
	pier_hip_leave(hip, &scope);
	return result;
}

/* Initialises HIP: there is no other way to count the devices. */
static int probe_hip(char *ret_detail, size_t size)
{
	int result = probe_devices(ret_detail, size);

	if (result != 0)
		snprintf(ret_detail, size, "%s", pier_error_message());
	return result;
}

const struct pier_backend pier_hip_backend = {
	.abi = PIER_BACKEND_ABI,
	.size = sizeof(struct pier_backend),
	.name = "hip",
	.description = "memory of AMD GPUs (HIP); units N, N:fine and N:host",
	.dmabuf = true,
	.mappings = true,
	.probe = probe_hip,
	.alloc = pier_hip_alloc,
	.free = pier_hip_free,
	.find = pier_hip_find,
	.release = pier_hip_release,
	.export_range = pier_hip_export,
	.close_export = pier_hip_close_export,
	.copy_to = pier_hip_copy_to,
	.copy_from = pier_hip_copy_from,
	.flush = pier_hip_flush,
	.locate = hip_locate,
	.identity = pier_hip_identity,
	.describe = pier_hip_describe,
	.segment = pier_hip_segment,
	.unit = hip_unit,
	.lock_host = pier_hip_lock_host,
	.unlock_host = pier_hip_unlock_host,
	.copy_start = pier_hip_copy_start,
	.copy_query = pier_hip_copy_query,
	.warm_up = pier_hip_warm_up,
};
