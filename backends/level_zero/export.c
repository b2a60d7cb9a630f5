/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "load.h"
#include "export.h"

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
	       pier_ze_read_properties(state->ze, state->device, memory->address, &here,
				       NULL) &&
	       pier_ze_read_properties(state->ze, state->device, memory->address - 1,
				       &before, NULL) &&
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
	return pier_ze_fail(error, "exporting the memory at %#llx",
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
