/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <pier/backend.h>

#include "alloc.h"
#include "copy.h"
#include "export.h"
#include "memory.h"

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

static int ze_locate(const struct pier_memory *memory, char ret_pci[16],
		     int *ret_numa_node)
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

/* Of the backend's table. */
static int ze_unit(uint32_t index, struct pier_backend_unit *ret_unit)
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

/*
 * Built in, but written like a backend of somebody else's: of pier it includes only the
 * public <pier/backend.h>, which tests/lint/check_layers checks.
 */

static int probe_devices(char *ret_detail, size_t size)
{
	char reason[PIER_ZE_REASON];
	struct pier_ze *ze = NULL;
	uint32_t exports = 0;
	int result = pier_ze_open(&ze, reason);

	if (result != 0) {
		snprintf(ret_detail, size, "%s", reason);
		return result;
	}
	for (uint32_t i = 0; i < ze->count; i++)
		exports += ze->devices[i].exports;
	snprintf(ret_detail, size, "%u device%s, Level Zero %u.%u; %s", ze->count,
		 ze->count == 1 ? "" : "s", ze->version >> 16, ze->version & 0xffff,
		 exports == ze->count ? "dma-bufs"
		 : exports	      ? "dma-bufs of some"
				      : "no dma-bufs: the driver is too old for them");
	return 0;
}

/*
 * What Intel's GPUs need is documented nowhere. PCI Express orders a read behind earlier
 * writes of the same NIC (PCI Express Base Specification, "Transaction Ordering"), so the
 * NIC's read shows that its writes have arrived.
 */
static int flush_device(const struct pier_memory *memory,
			const struct pier_backend_flush *range)
{
	const struct pier_ze_memory *state = memory->state;

	if (state->type != PIER_ZE_MEMORY_DEVICE || range->read_back)
		return 0;
	return PIER_BACKEND_READ_BACK;
}

const struct pier_backend pier_level_zero_backend = {
	.abi = PIER_BACKEND_ABI,
	.size = sizeof(struct pier_backend),
	.name = "level_zero",
	.description = "memory of Intel GPUs (Level Zero); units N, N:host and N:shared",
	.dmabuf = true,
	.probe = probe_devices,
	.alloc = pier_ze_alloc,
	.free = pier_ze_free,
	.find = pier_ze_find,
	.release = pier_ze_release,
	.export_range = pier_ze_export,
	.close_export = pier_ze_close_export,
	.copy_to = pier_ze_copy_to,
	.copy_from = pier_ze_copy_from,
	.flush = flush_device,
	.locate = ze_locate,
	.identity = pier_ze_identity,
	.describe = pier_ze_describe,
	.unit = ze_unit,
};
