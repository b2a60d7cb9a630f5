/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "unit.h"

enum {
	PCI = 16,  /* size of pier_backend_unit.pci */
	HEAPS = 4, /* kinds of memory of a device that are added up */
};

static void read_pci(const struct pier_ze *ze, const struct pier_ze_device *device,
		     char ret_pci[PCI])
{
	struct pier_ze_pci_properties pci = { .stype = PIER_ZE_TYPE_PCI_PROPERTIES };

	ret_pci[0] = '\0';
	if (ze->call.zeDevicePciGetPropertiesExt &&
	    ze->call.zeDevicePciGetPropertiesExt(device->handle, &pci) == PIER_ZE_SUCCESS)
		snprintf(ret_pci, PCI, "%04x:%02x:%02x.%x", pci.domain & 0xffff,
			 pci.bus & 0xff, pci.device & 0x1f, pci.function & 7);
}

int pier_ze_locate(const struct pier_memory *memory, char ret_pci[16], int *ret_numa_node)
{
	const struct pier_ze_memory *state = memory->state;

	ret_pci[0] = '\0';
	*ret_numa_node = -1;
	if (state->type == PIER_ZE_MEMORY_DEVICE && !pier_ze_inherited(state->ze))
		read_pci(state->ze, state->device, ret_pci);
	return 0;
}

static uint64_t read_total(const struct pier_ze *ze, const struct pier_ze_device *device)
{
	struct pier_ze_device_memory_properties heaps[HEAPS];
	uint32_t count = HEAPS;
	uint64_t total = 0;

	memset(heaps, 0, sizeof(heaps));
	for (uint32_t i = 0; i < count; i++)
		heaps[i].stype = PIER_ZE_TYPE_DEVICE_MEMORY_PROPERTIES;
	if (ze->call.zeDeviceGetMemoryProperties(device->handle, &count, heaps) !=
	    PIER_ZE_SUCCESS)
		return 0;
	for (uint32_t i = 0; i < count && i < HEAPS; i++)
		total += heaps[i].total;
	return total;
}

int pier_ze_unit(uint32_t index, struct pier_backend_unit *ret_unit)
{
	struct pier_ze_device_properties properties = {
		.stype = PIER_ZE_TYPE_DEVICE_PROPERTIES,
	};
	char reason[PIER_ZE_REASON];
	const struct pier_ze_device *device;
	struct pier_ze *ze;

	if (pier_ze_open(&ze, reason) != 0 || index >= ze->count)
		return -ENOENT;
	device = &ze->devices[index];
	snprintf(ret_unit->unit, sizeof(ret_unit->unit), "%u", index);
	if (ze->call.zeDeviceGetProperties(device->handle, &properties) ==
	    PIER_ZE_SUCCESS)
		snprintf(ret_unit->name, sizeof(ret_unit->name), "%.*s",
			 (int)sizeof(ret_unit->name) - 1, properties.name);
	read_pci(ze, device, ret_unit->pci);
	ret_unit->numa_node = -1;
	snprintf(ret_unit->detail, sizeof(ret_unit->detail), "%llu MiB%s",
		 (unsigned long long)(read_total(ze, device) >> 20),
		 device->exports ? "" : ", no dma-bufs");
	return 0;
}
