/* SPDX-License-Identifier: BSD-3-Clause */
#include <sys/eventfd.h>
#include <unistd.h>

#include "fake.h"

/*
 * Exports of libhsa-runtime64.so.1. Without FAKE_V2 it lacks the second version of the
 * export and the memory of hipMemMap(); without FAKE_DMABUF it lacks all of them, as
 * Debian 12's does. The order of checks and the statuses are those of
 * Runtime::DmaBufExport() and Runtime::VMemory...() in ROCr's runtime.cpp, 8/2025.
 */
enum {
	MOST_EXPORTS = 1024,
};

/* Open exports. */
static int exported[MOST_EXPORTS];

FAKE_API int fake_hip_attach(int fd)
{
	struct fake_hip *settings = fake_settings();
	int error = 0;

	fake_lock();
	for (size_t i = 0; i < settings->exports_open; i++) {
		if (exported[i] == fd)
			error = settings->attach_error;
	}
	fake_unlock();
	return error;
}

#ifdef FAKE_DMABUF

enum {
	SUCCESS = 0,
	NOT_SUPPORTED = 47,
	ERROR = 0x1000,
	INVALID_ARGUMENT = 0x1001,
	INVALID_ALLOCATION = 0x1003,
	INVALID_AGENT = 0x1004,
	OUT_OF_RESOURCES = 0x1008,
	RESOURCE_FREE = 0x100A,
	NOT_INITIALIZED = 0x100B,

	MAPPING_PCIE = 1,
};

/* True if the importer can use this mapping. */
static bool suits(uint64_t flags)
{
	enum fake_hip_pcie pcie = fake_settings()->pcie;

	return flags & MAPPING_PCIE ? pcie != FAKE_HIP_PCIE_WRONG
				    : pcie != FAKE_HIP_PCIE_REQUIRED;
}

/* Checks in the order of Runtime::DmaBufExport(). */
static unsigned int check(const char *pointer, size_t size,
			  const struct fake_allocation *allocation, uint64_t flags)
{
	struct fake_hip *settings = fake_settings();
	unsigned int type = fake_pointer_type(allocation);

	if (type == FAKE_POINTER_IPC) {
		settings->misuses++;
		return INVALID_ALLOCATION;
	}
	if (settings->managed && allocation && allocation->kind == FAKE_MANAGED)
		return SUCCESS;
	/* Runtime::allocation_map_ has nothing that hsa_amd_vmem_map() mapped. */
	if (type != FAKE_POINTER_HSA)
		return INVALID_ALLOCATION;
	if (size > allocation->whole - (size_t)(pointer - allocation->address))
		return INVALID_ALLOCATION;
	if (fake_on_host(allocation->kind))
		return INVALID_AGENT;
	if (flags & ~(uint64_t)MAPPING_PCIE)
		return INVALID_ARGUMENT;
	if (flags && settings->pcie == FAKE_HIP_PCIE_REFUSED)
		return NOT_SUPPORTED;
	return SUCCESS;
}

/* The driver's part: an fd of the block; NULL: of memory that has none. */
static unsigned int make_fd(struct fake_block *block, bool suitable, int *ret_fd)
{
	struct fake_hip *settings = fake_settings();
	int fd;

	if (settings->lost_call == 1)
		return ERROR;
	if (!settings->dmabuf || settings->exports_open >= settings->exports_most ||
	    settings->exports_open >= MOST_EXPORTS)
		return OUT_OF_RESOURCES;
	if (!suitable || !block)
		fd = eventfd(0, 0);
	else if (settings->gtt)
		fd = device_memory_export_copy(&block->memory);
	else
		fd = device_memory_export(&block->memory);
	if (fd < 0)
		return OUT_OF_RESOURCES;
	exported[settings->exports_open++] = fd;
	settings->exports++;
	*ret_fd = fd;
	return SUCCESS;
}

static unsigned int export_locked(const char *pointer, size_t size, uint64_t flags,
				  int *ret_fd, uint64_t *ret_offset)
{
	struct fake_hip *settings = fake_settings();
	struct fake_allocation *allocation = fake_find(pointer);
	unsigned int status = check(pointer, size, allocation, flags);

	if (status == SUCCESS)
		status = make_fd(allocation->block, suits(flags), ret_fd);
	if (status != SUCCESS)
		return status;
	settings->pcie_exports += flags & MAPPING_PCIE;
	if (allocation->block)
		*ret_offset = (uint64_t)(pointer -
					 (char *)allocation->block->memory.address);
	return SUCCESS;
}

static unsigned int export(const void *pointer, size_t size, uint64_t flags, int *ret_fd,
			   uint64_t *ret_offset)
{
	unsigned int status;

	if (!fake_hsa_is_open())
		return NOT_INITIALIZED;
	if (!pointer || !ret_fd || !ret_offset || size == 0)
		return INVALID_ARGUMENT;
	fake_lock();
	status = export_locked(pointer, size, flags, ret_fd, ret_offset);
	fake_unlock();
	return status;
}

FAKE_API unsigned int hsa_amd_portable_export_dmabuf(const void *pointer, size_t size,
						     int *ret_fd, uint64_t *ret_offset)
{
	return export(pointer, size, 0, ret_fd, ret_offset);
}

#ifdef FAKE_V2
FAKE_API unsigned int hsa_amd_portable_export_dmabuf_v2(const void *pointer, size_t size,
							int *ret_fd, uint64_t *ret_offset,
							uint64_t flags)
{
	return export(pointer, size, flags, ret_fd, ret_offset);
}
#endif

FAKE_API unsigned int hsa_amd_portable_close_dmabuf(int fd)
{
	struct fake_hip *settings = fake_settings();
	bool known = false;

	fake_lock();
	for (size_t i = 0; i < settings->exports_open && !known; i++) {
		known = exported[i] == fd;
		if (known)
			exported[i] = exported[--settings->exports_open];
	}
	if (!known)
		settings->misuses++;
	fake_unlock();
	return close(fd) == 0 ? SUCCESS : RESOURCE_FREE;
}

#ifdef FAKE_V2

struct vmem_handle {
	uint64_t handle; /* number of the allocation */
};

static struct fake_allocation *find_mapped(struct vmem_handle handle)
{
	return fake_find_number((uint32_t)handle.handle);
}

/*
 * Runtime::VMemoryRetainAllocHandle() finds nothing by an interior address of a mapping.
 */
FAKE_API unsigned int hsa_amd_vmem_retain_alloc_handle(struct vmem_handle *ret_handle,
						       void *address)
{
	struct fake_allocation *allocation;
	unsigned int status = INVALID_ALLOCATION;

	if (!fake_hsa_is_open())
		return NOT_INITIALIZED;
	fake_lock();
	allocation = fake_find(address);
	if (allocation && fake_pointer_type(allocation) == FAKE_POINTER_VIRTUAL &&
	    allocation->block->memory.address == address) {
		ret_handle->handle = allocation->number;
		fake_settings()->retained++;
		status = SUCCESS;
	}
	fake_unlock();
	return status;
}

FAKE_API unsigned int hsa_amd_vmem_handle_release(struct vmem_handle handle)
{
	unsigned int status = INVALID_ALLOCATION;

	fake_lock();
	if (find_mapped(handle) && fake_settings()->retained > 0) {
		fake_settings()->retained--;
		status = SUCCESS;
	} else {
		fake_settings()->misuses++;
	}
	fake_unlock();
	return status;
}

/* The caller knows the offset: the dma-buf is all of the allocation. */
FAKE_API unsigned int hsa_amd_vmem_export_shareable_handle(int *ret_fd,
							   struct vmem_handle handle,
							   uint64_t flags)
{
	struct fake_allocation *allocation;
	unsigned int status;

	(void)flags;
	*ret_fd = -1;
	fake_lock();
	status = fake_failure("hsa_amd_vmem_export_shareable_handle");
	allocation = find_mapped(handle);
	if (status == SUCCESS)
		status = allocation ? make_fd(allocation->block, true, ret_fd)
				    : INVALID_ALLOCATION;
	fake_unlock();
	return status;
}

#endif
#endif
