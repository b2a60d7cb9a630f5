/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory.h"

static const void *to_pointer(uint64_t address)
{
	return (const void *)(uintptr_t)address;
}

/*
 * The properties of the allocation at an address. Returns false if it is in no memory of
 * that device's driver.
 *
 * ret_holder  the device that holds it, or NULL for host memory; may be NULL
 *
 * The specification promises properties only for memory of the given context. Intel's
 * driver has one list of allocations for all contexts (svmAllocsManager of the driver, in
 * ContextImp::getMemAllocProperties() of its context_imp.cpp), so that pier's own context
 * knows the application's memory. UCX (uct_ze_copy_md_open()) and libfabric
 * (ze_hmem_init()) rely on that, too. Drivers of NPUs fail instead of reporting
 * "unknown".
 */
static bool read_properties(const struct pier_ze *ze, const struct pier_ze_device *device,
			    uint64_t address,
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
		    read_properties(ze, device, address, ret_properties, ret_holder))
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
			       : pier_ze_check(error,
					       "asking for the allocation at %#llx",
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
	if (read_properties(state->ze, state->device, memory->address, &properties,
			    NULL) &&
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

static int check_request(const struct pier_memory *memory, enum pier_mapping mapping)
{
	int result = pier_ze_check_memory(memory);

	if (result != 0)
		return result;
	if (mapping == PIER_MAPPING_PCIE)
		return pier_fail(EOPNOTSUPP,
				 "Level Zero has no choice of mappings: use the default");
	return 0;
}

/*
 * The driver carves small memory that is not allocated for exports out of pools. The fd
 * is then the pool's, and zeMemGetAddressRange() has the bounds of the piece
 * (getUsmPoolOwningPtr() in ContextImp::getMemAddressRange()), so that the offset in the
 * dma-buf is unknown. The number is the pool's, too: a piece with the same number right
 * before it gives it away.
 */
static bool is_pooled(const struct pier_memory *memory)
{
	const struct pier_ze_memory *state = memory->state;
	struct pier_ze_memory_properties here, before;

	return state->wrapped &&
	       read_properties(state->ze, state->device, memory->address, &here, NULL) &&
	       read_properties(state->ze, state->device, memory->address - 1, &before,
			       NULL) &&
	       here.id == before.id;
}

static int fail_export(unsigned int error, uint64_t address)
{
	if (error == PIER_ZE_UNSUPPORTED_FEATURE ||
	    error == PIER_ZE_UNSUPPORTED_ENUMERATION || error == PIER_ZE_INVALID_ARGUMENT)
		return pier_fail(
			EOPNOTSUPP,
			"the driver does not export the memory at %#llx (%s, %#x): "
			"allocate it with ze_external_memory_export_desc_t and "
			"ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF, or allow a bounce buffer",
			(unsigned long long)address, pier_ze_error_name(error), error);
	return pier_ze_check(error, "exporting the memory at %#llx",
			     (unsigned long long)address);
}

/*
 * The dma-buf is the whole allocation. It stays the driver's, which gives the same fd
 * each time and closes it with the memory (DrmAllocation::peekInternalHandle(); UCX's
 * uct_ze_copy_md_mem_query() duplicates it as well).
 */
static int read_fd(const struct pier_memory *memory, uint64_t address, int *ret_fd)
{
	const struct pier_ze_memory *state = memory->state;
	struct pier_ze_export_fd exported = {
		.stype = PIER_ZE_TYPE_EXPORT_FD,
		.flags = PIER_ZE_EXTERNAL_MEMORY_DMABUF,
		.fd = -1,
	};
	struct pier_ze_memory_properties properties = {
		.stype = PIER_ZE_TYPE_MEMORY_PROPERTIES,
		.next = &exported,
	};
	unsigned int error = state->ze->call.zeMemGetAllocProperties(
		state->device->context, (const void *)(uintptr_t)address, &properties,
		NULL);

	if (error != PIER_ZE_SUCCESS)
		return fail_export(error, address);
	*ret_fd = fcntl(exported.fd, F_DUPFD_CLOEXEC, 0);
	if (*ret_fd >= 0)
		return 0;
	return pier_fail(errno, "duplicating the dma-buf of the memory at %#llx: %s",
			 (unsigned long long)address, strerror(errno));
}

/*
 * Memory of a device with several tiles can have a dma-buf for each, and the driver gives
 * only the first one (getNumHandles() and handleAllocationExtensions()).
 */
static int check_size(int fd, uint64_t offset, uint64_t length)
{
	off_t size = lseek(fd, 0, SEEK_END);

	if (size < 0)
		return pier_fail(errno, "asking for the size of the dma-buf: %s",
				 strerror(errno));
	if ((uint64_t)size >= length && offset <= (uint64_t)size - length)
		return 0;
	return pier_fail(EOPNOTSUPP,
			 "the dma-buf has %llu bytes, and %llu at %llu were asked for: "
			 "the memory is spread over the tiles of the device. Use one "
			 "tile (ZE_FLAT_DEVICE_HIERARCHY=FLAT), or allow a bounce buffer",
			 (unsigned long long)size, (unsigned long long)length,
			 (unsigned long long)offset);
}

int pier_ze_export(const struct pier_memory *memory,
		   const struct pier_backend_request *request,
		   struct pier_backend_export *ret_export)
{
	uint64_t offset = request->address - memory->address;
	int fd = -1, result = check_request(memory, request->mapping);

	if (result == 0 && is_pooled(memory))
		return pier_fail(
			EOPNOTSUPP,
			"the memory at %#llx is a piece of the driver's pool: allocate "
			"it with ze_external_memory_export_desc_t, or allow a bounce "
			"buffer",
			(unsigned long long)memory->address);
	if (result == 0)
		result = read_fd(memory, request->address, &fd);
	if (result != 0)
		return result;
	result = check_size(fd, offset, request->length);
	if (result != 0) {
		close(fd);
		return result;
	}
	ret_export->fd = fd;
	ret_export->offset = offset;
	return 0;
}

void pier_ze_close_export(struct pier_backend_export *dmabuf)
{
	close(dmabuf->fd);
}
