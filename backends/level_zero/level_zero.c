/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>

#include <pier/backend.h>

#include "alloc.h"
#include "copy.h"
#include "export.h"
#include "unit.h"

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
	.locate = pier_ze_locate,
	.identity = pier_ze_identity,
	.describe = pier_ze_describe,
	.unit = pier_ze_unit,
};
