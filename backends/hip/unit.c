/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>

#include "device.h"
#include "load.h"
#include "memory.h"
#include "unit.h"

int pier_hip_locate_memory(const struct pier_memory *memory, char ret_pci[16],
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

int pier_hip_unit(uint32_t index, struct pier_backend_unit *ret_unit)
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
