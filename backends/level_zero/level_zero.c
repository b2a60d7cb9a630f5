/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory.h"

/*
 * A command list must not be used by two threads at once. Instead of a lock, which a copy
 * would hold until it is done, each copy takes the device's idle list or makes one.
 */
static unsigned int take_list(const struct pier_ze *ze, struct pier_ze_device *device,
			      struct _ze_command_list_handle_t **ret_list)
{
	struct pier_ze_command_queue_desc desc = {
		.stype = PIER_ZE_TYPE_COMMAND_QUEUE_DESC,
		.ordinal = device->ordinal,
		.mode = PIER_ZE_QUEUE_SYNCHRONOUS,
	};

	*ret_list = atomic_exchange(&device->idle, NULL);
	if (*ret_list)
		return PIER_ZE_SUCCESS;
	return ze->call.zeCommandListCreateImmediate(device->context, device->handle,
						     &desc, ret_list);
}

/* After an error the list may be unusable. */
static void put_list(const struct pier_ze *ze, struct pier_ze_device *device,
		     struct _ze_command_list_handle_t *list, unsigned int error)
{
	struct _ze_command_list_handle_t *none = NULL;

	if (error != PIER_ZE_SUCCESS ||
	    !atomic_compare_exchange_strong(&device->idle, &none, list))
		ze->call.zeCommandListDestroy(list);
}

/*
 * Copy, or without a source fill with zeros. The list is synchronous: what is appended is
 * done on return.
 */
static int run_copy(const struct pier_ze_memory *state, void *destination,
		    const void *source, uint64_t length)
{
	static const char zero;
	const struct pier_ze_functions *call = &state->ze->call;
	struct _ze_command_list_handle_t *list;
	unsigned int error = take_list(state->ze, state->device, &list);

	if (error == PIER_ZE_SUCCESS) {
		error = source ? call->zeCommandListAppendMemoryCopy(
					 list, destination, source, length, NULL, 0, NULL)
			       : call->zeCommandListAppendMemoryFill(
					 list, destination, &zero, sizeof(zero), length,
					 NULL, 0, NULL);
		put_list(state->ze, state->device, list, error);
	}
	return pier_ze_check(error, "%s %llu bytes by device %d",
			     source ? "copying" : "clearing", (unsigned long long)length,
			     (int)(state->device - state->ze->devices));
}

static int copy_memory(const struct pier_memory *memory, void *destination,
		       const void *source, uint64_t length)
{
	const struct pier_ze_memory *state = memory->state;
	int result;

	if (memory->cpu && !state->wrapped) {
		memcpy(destination, source, length);
		return 0;
	}
	result = pier_ze_check_memory(memory);
	return result == 0 ? run_copy(state, destination, source, length) : result;
}

/* Of the backend's table. */
static int ze_copy_to(const struct pier_memory *memory, uint64_t offset,
		      const void *source, uint64_t length)
{
	return copy_memory(memory, (void *)(uintptr_t)(memory->address + offset), source,
			   length);
}

static int ze_copy_from(const struct pier_memory *memory, uint64_t offset,
			void *destination, uint64_t length)
{
	return copy_memory(memory, destination,
			   (const void *)(uintptr_t)(memory->address + offset), length);
}

/* More than 9 digits are no device's. */
static int parse_unit(const char *unit, long *ret_index, unsigned int *ret_type)
{
	static const struct {
		const char *kind;
		unsigned int type;
	} kinds[] = {
		{ "", PIER_ZE_MEMORY_DEVICE },
		{ ":host", PIER_ZE_MEMORY_HOST },
		{ ":shared", PIER_ZE_MEMORY_SHARED },
	};
	size_t digits = strspn(unit, "0123456789");
	bool is_number = digits == 1 || (digits > 1 && unit[0] != '0');

	*ret_index = digits > 9 ? 999999999 : strtol(unit, NULL, 10);
	for (size_t i = 0; is_number && i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		if (strcmp(unit + digits, kinds[i].kind) == 0) {
			*ret_type = kinds[i].type;
			return 0;
		}
	}
	return pier_fail(EINVAL,
			 "Level Zero's units are N, N:host and N:shared, with the number "
			 "of a device, but \"%s\" was asked for",
			 unit);
}

static unsigned int call_alloc(const struct pier_ze_memory *state, size_t length,
			       void **ret_pointer)
{
	const struct pier_ze_functions *call = &state->ze->call;
	struct pier_ze_device *device = state->device;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	/* Without it, the specification promises no export, and the memory may be pooled.
	 */
	struct pier_ze_export_desc exported = {
		.stype = PIER_ZE_TYPE_EXPORT_DESC,
		.flags = PIER_ZE_EXTERNAL_MEMORY_DMABUF,
	};
	struct pier_ze_device_mem_alloc_desc on_device = {
		.stype = PIER_ZE_TYPE_DEVICE_MEM_ALLOC_DESC,
	};
	struct pier_ze_host_mem_alloc_desc on_host = {
		.stype = PIER_ZE_TYPE_HOST_MEM_ALLOC_DESC,
	};

	if (state->type == PIER_ZE_MEMORY_HOST)
		return call->zeMemAllocHost(device->context, &on_host, length, page,
					    ret_pointer);
	if (state->type == PIER_ZE_MEMORY_SHARED)
		return call->zeMemAllocShared(device->context, &on_device, &on_host,
					      length, page, device->handle, ret_pointer);
	on_device.next = device->exports ? &exported : NULL;
	return call->zeMemAllocDevice(device->context, &on_device, length, page,
				      device->handle, ret_pointer);
}

static int check_alloc(const struct pier_ze_memory *state, unsigned int error,
		       uint64_t length, const char *unit)
{
	if (error == PIER_ZE_UNSUPPORTED_SIZE)
		return pier_ze_check(error,
				     "allocating %llu bytes of unit %s: an allocation "
				     "there has at most %llu",
				     (unsigned long long)length, unit,
				     (unsigned long long)state->device->max_alloc);
	return pier_ze_check(error, "allocating %llu bytes of unit %s",
			     (unsigned long long)length, unit);
}

static int alloc_pages(struct pier_ze_memory *state, const char *unit, uint64_t length,
		       struct pier_memory *ret_memory)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t rounded = (length + page - 1) / page * page;
	void *pointer = NULL;
	int result;

	if (rounded < length || rounded > SIZE_MAX)
		return pier_fail(ENOMEM, "%llu bytes are more than there are addresses",
				 (unsigned long long)length);
	result = check_alloc(state, call_alloc(state, rounded, &pointer), rounded, unit);
	if (result != 0)
		return result;
	if (state->type == PIER_ZE_MEMORY_DEVICE)
		result = run_copy(state, pointer, NULL, rounded);
	else
		memset(pointer, 0, rounded);
	if (result != 0) {
		state->ze->call.zeMemFree(state->device->context, pointer);
		return result;
	}
	ret_memory->address = (uint64_t)(uintptr_t)pointer;
	ret_memory->length = rounded;
	ret_memory->cpu = state->type == PIER_ZE_MEMORY_DEVICE ? NULL : pointer;
	return 0;
}

/* Of the backend's table. */
static int ze_alloc(const char *unit, uint64_t length, struct pier_memory *ret_memory)
{
	unsigned int type = PIER_ZE_MEMORY_DEVICE;
	char reason[PIER_ZE_REASON];
	struct pier_ze *ze = NULL;
	struct pier_ze_memory *state;
	long index = 0;
	int result;

	if (!unit)
		unit = "0";
	result = parse_unit(unit, &index, &type);
	if (result != 0)
		return result;
	result = pier_ze_open(&ze, reason);
	if (result != 0)
		return pier_fail(-result, "%s", reason);
	if ((unsigned long)index >= ze->count)
		return pier_fail(
			EINVAL,
			"Level Zero has %u GPUs, from 0 on, but \"%s\" was asked "
			"for: ZE_AFFINITY_MASK and ZE_FLAT_DEVICE_HIERARCHY "
			"choose them",
			ze->count, unit);
	state = calloc(1, sizeof(*state));
	if (!state)
		return pier_fail(ENOMEM, "no memory for the description of memory");
	state->ze = ze;
	state->device = &ze->devices[index];
	state->type = type;
	result = alloc_pages(state, unit, length, ret_memory);
	if (result != 0) {
		free(state);
		return result;
	}
	ret_memory->state = state;
	return 0;
}

static void ze_free(struct pier_memory *memory)
{
	struct pier_ze_memory *state = memory->state;

	/* In a child of fork(2) the memory is the parent's. */
	if (!pier_ze_inherited(state->ze))
		state->ze->call.zeMemFree(state->device->context,
					  (void *)(uintptr_t)memory->address);
	free(state);
}

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
	.alloc = ze_alloc,
	.free = ze_free,
	.find = pier_ze_find,
	.release = pier_ze_release,
	.export_range = pier_ze_export,
	.close_export = pier_ze_close_export,
	.copy_to = ze_copy_to,
	.copy_from = ze_copy_from,
	.flush = flush_device,
	.locate = ze_locate,
	.identity = pier_ze_identity,
	.describe = pier_ze_describe,
	.unit = ze_unit,
};
