/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "load.h"
#include "memory.h"

static const void *to_pointer(uint64_t address)
{
	return (const void *)(uintptr_t)address;
}

/*
 * The specification promises properties only for memory of the given context. Intel's
 * driver has one list of allocations for all contexts (svmAllocsManager of the driver, in
 * ContextImp::getMemAllocProperties() of its context_imp.cpp), so that pier's own context
 * knows the application's memory. UCX (uct_ze_copy_md_open()) and libfabric
 * (ze_hmem_init()) rely on that, too. Drivers of NPUs fail instead of reporting
 * "unknown".
 */
bool pier_ze_read_properties(const struct pier_ze *ze,
			     const struct pier_ze_device *device, uint64_t address,
			     struct pier_ze_memory_properties *ret_properties,
			     struct _ze_device_handle_t **ret_holder)
{
	*ret_properties = (struct pier_ze_memory_properties){
		.stype = PIER_ZE_TYPE_MEMORY_PROPERTIES,
	};
	return ze->call.zeMemGetAllocProperties(device->context, to_pointer(address),
						ret_properties,
						ret_holder) == PIER_ZE_SUCCESS &&
	       ret_properties->type != PIER_ZE_MEMORY_UNKNOWN;
}

/* A tile of a device that is listed as a whole counts as the driver's first device. */
static struct pier_ze_device *find_holder(struct pier_ze *ze,
					  struct pier_ze_device *first,
					  const struct _ze_device_handle_t *holder)
{
	for (uint32_t i = 0; i < ze->count; i++) {
		if (ze->devices[i].handle == holder)
			return &ze->devices[i];
	}
	return first;
}

/* Writes the driver's first device, and its answer; or returns NULL. */
static struct pier_ze_device *find_driver(
	struct pier_ze *ze, uint64_t address,
	struct pier_ze_memory_properties *ret_properties,
	struct _ze_device_handle_t **ret_holder)
{
	for (uint32_t i = 0; i < ze->count; i++) {
		struct pier_ze_device *device = &ze->devices[i];

		*ret_holder = NULL;
		if ((i == 0 || device->driver != ze->devices[i - 1].driver) &&
		    pier_ze_read_properties(ze, device, address, ret_properties,
					    ret_holder))
			return device;
	}
	return NULL;
}

/* Returns a result of the driver. */
static unsigned int read_range(const struct pier_ze *ze,
			       const struct pier_ze_device *device, uint64_t address,
			       uint64_t *ret_base, uint64_t *ret_size)
{
	void *base = NULL;
	size_t size = 0;
	unsigned int error = ze->call.zeMemGetAddressRange(
		device->context, to_pointer(address), &base, &size);

	*ret_base = (uint64_t)(uintptr_t)base;
	*ret_size = size;
	return error;
}

/*
 * The driver reports the size that was asked for, and gives device memory whole pages of
 * at least 4 KiB.
 */
static uint64_t round_length(uint64_t base, uint64_t size)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	return base % page ? size : (size + page - 1) / page * page;
}

int pier_ze_find(uint64_t address, uint64_t length, struct pier_memory *ret_memory)
{
	struct pier_ze *ze = pier_ze_present();
	struct pier_ze_memory_properties properties;
	struct _ze_device_handle_t *holder;
	struct pier_ze_device *driver;
	struct pier_ze_memory *state;
	uint64_t base, size;
	unsigned int error;

	(void)length;
	driver = ze ? find_driver(ze, address, &properties, &holder) : NULL;
	if (!driver)
		return -ENOENT;
	error = read_range(ze, driver, address, &base, &size);
	/* The library would take it for host memory, which it may be. */
	if (error != PIER_ZE_SUCCESS)
		return properties.type == PIER_ZE_MEMORY_HOST
			       ? -ENOENT
			       : pier_ze_fail(error, "asking for the allocation at %#llx",
					      (unsigned long long)address);
	state = calloc(1, sizeof(*state));
	if (!state)
		return pier_fail(ENOMEM, "no memory for the description of memory");
	state->ze = ze;
	state->device = find_holder(ze, driver, holder);
	state->type = properties.type;
	state->id = properties.id;
	state->wrapped = true;
	ret_memory->address = base;
	ret_memory->length = state->type == PIER_ZE_MEMORY_DEVICE
				     ? round_length(base, size)
				     : size;
	ret_memory->cpu = state->type == PIER_ZE_MEMORY_DEVICE ? NULL
							       : (void *)(uintptr_t)base;
	ret_memory->state = state;
	return 0;
}

void pier_ze_release(struct pier_memory *memory)
{
	free(memory->state);
}

/*
 * SvmAllocationData::getAllocId() counts allocations. Older drivers report the address
 * instead, which later memory can have, too; drivers of NPUs report 0. A piece of the
 * driver's pool has the pool's number: its pages outlive it, and so a region of it stays
 * right.
 */
int pier_ze_identity(uint64_t address, uint64_t *ret_identity)
{
	struct pier_ze *ze = pier_ze_present();
	struct pier_ze_memory_properties properties;
	struct _ze_device_handle_t *holder;
	const struct pier_ze_device *driver;
	uint64_t base, size;

	driver = ze ? find_driver(ze, address, &properties, &holder) : NULL;
	if (!driver || read_range(ze, driver, address, &base, &size) != PIER_ZE_SUCCESS ||
	    properties.id == 0 || properties.id == base)
		return -ENOENT;
	*ret_identity = properties.id;
	return 0;
}

int pier_ze_check_memory(const struct pier_memory *memory)
{
	const struct pier_ze_memory *state = memory->state;
	struct pier_ze_memory_properties properties;

	if (pier_ze_inherited(state->ze))
		return pier_fail(ECHILD,
				 "this memory belongs to the parent of this process: "
				 "Level Zero's drivers do not work after fork(2)");
	if (!state->wrapped)
		return 0;
	if (pier_ze_read_properties(state->ze, state->device, memory->address,
				    &properties, NULL) &&
	    properties.id == state->id)
		return 0;
	return pier_fail(EFAULT,
			 "the memory at %#llx was freed since it was wrapped, and what "
			 "is at its address now belongs to something else",
			 (unsigned long long)memory->address);
}

static const char *name_kind(const struct pier_ze_memory *state)
{
	switch (state->type) {
	case PIER_ZE_MEMORY_DEVICE:
		return "zeMemAllocDevice";
	case PIER_ZE_MEMORY_SHARED:
		return "zeMemAllocShared";
	case PIER_ZE_MEMORY_HOST:
		return "zeMemAllocHost";
	default:
		return "imported host memory";
	}
}

static const char *explain_no_export(const struct pier_ze_memory *state)
{
	/* ContextImp::handleAllocationExtensions() refuses every export of it. */
	if (state->type == PIER_ZE_MEMORY_SHARED)
		return "its pages move between the host and the device; use "
		       "zeMemAllocDevice() or zeMemAllocHost(), or allow a bounce buffer";
	if (state->type != PIER_ZE_MEMORY_DEVICE)
		return "it is host memory, which is registered by its address";
	if (!state->device->exports)
		return "the device's driver exports no dma-bufs "
		       "(zeDeviceGetExternalMemoryProperties()); use a newer driver, or "
		       "allow a bounce buffer";
	return "";
}

void pier_ze_describe(const struct pier_memory *memory,
		      struct pier_memory_facts *ret_facts)
{
	const struct pier_ze_memory *state = memory->state;

	snprintf(ret_facts->kind, sizeof(ret_facts->kind), "%s", name_kind(state));
	snprintf(ret_facts->unit, sizeof(ret_facts->unit), "%d",
		 (int)(state->device - state->ze->devices));
	snprintf(ret_facts->no_export, sizeof(ret_facts->no_export), "%s",
		 explain_no_export(state));
	ret_facts->host = state->type != PIER_ZE_MEMORY_DEVICE &&
			  state->type != PIER_ZE_MEMORY_SHARED;
	ret_facts->moves = state->type == PIER_ZE_MEMORY_SHARED;
}
