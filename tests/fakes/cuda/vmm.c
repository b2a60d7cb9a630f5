/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include <string.h>

#include "fake.h"

static bool is_whole(uint64_t value)
{
	return value % FAKE_GRANULARITY == 0;
}

/* Handles are addresses, which the application must treat as opaque. */
static struct fake_handle *find_handle(CUmemGenericAllocationHandle wanted)
{
	struct fake_handle *handle = fake_driver.handles;

	while (handle && ((uintptr_t)handle != wanted || handle->references == 0))
		handle = handle->next;
	return handle;
}

static void drop_unused(struct fake_handle *handle)
{
	struct fake_handle **link = &fake_driver.handles;

	if (handle->references > 0 || handle->mappings > 0)
		return;
	while (*link != handle)
		link = &(*link)->next;
	*link = handle->next;
	fake_drop_backing(handle->backing);
	free(handle);
}

static bool is_on_host(const CUmemLocation *location)
{
	return location->type == CU_MEM_LOCATION_TYPE_HOST ||
	       location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

static CUresult check_properties(const CUmemAllocationProp *properties)
{
	if (!properties || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    properties->win32HandleMetaData)
		return CUDA_ERROR_INVALID_VALUE;
	if (is_on_host(&properties->location))
		return CUDA_SUCCESS;
	if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	if (!fake_has_device(properties->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	return fake_device(properties->location.id)->vmm ? CUDA_SUCCESS
							 : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult fake_cuMemGetAllocationGranularity(size_t *ret_granularity,
					    const CUmemAllocationProp *properties,
					    CUmemAllocationGranularity_flags option)
{
	CUresult result;

	FAKE_ENTER("cuMemGetAllocationGranularity", FAKE_NEEDS_INIT);
	if (!ret_granularity || option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
		return CUDA_ERROR_INVALID_VALUE;
	result = check_properties(properties);
	if (result == CUDA_SUCCESS)
		*ret_granularity = FAKE_GRANULARITY;
	return result;
}

CUresult fake_cuMemAddressReserve(CUdeviceptr *ret_address, size_t size, size_t alignment,
				  CUdeviceptr hint, unsigned long long flags)
{
	uint64_t address;

	FAKE_ENTER("cuMemAddressReserve", FAKE_NEEDS_INIT);
	(void)hint;
	if (!ret_address || flags || size == 0 || !is_whole(size) ||
	    alignment & (alignment - 1))
		return CUDA_ERROR_INVALID_VALUE;
	address = fake_take_addresses(size, alignment ? alignment : 1);
	if (!address)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!fake_add_piece(FAKE_CUDA_RESERVATION, address, size)) {
		fake_give_addresses(address, size);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*ret_address = address;
	return CUDA_SUCCESS;
}

static bool has_mappings(uint64_t address, uint64_t size)
{
	for (struct fake_piece *piece = fake_driver.pieces; piece; piece = piece->next)
		if (piece->kind == FAKE_CUDA_MAPPING &&
		    address < piece->address + piece->size &&
		    piece->address < address + size)
			return true;
	return false;
}

CUresult fake_cuMemAddressFree(CUdeviceptr address, size_t size)
{
	struct fake_piece *piece;

	FAKE_ENTER("cuMemAddressFree", FAKE_NEEDS_INIT);
	piece = fake_find_base(FAKE_CUDA_RESERVATION, address);
	if (!piece || piece->size != size || has_mappings(address, size))
		return CUDA_ERROR_INVALID_VALUE;
	fake_give_addresses(address, size);
	fake_remove_piece(piece);
	return CUDA_SUCCESS;
}

static CUresult create(uint64_t size, const CUmemAllocationProp *properties,
		       struct fake_handle **ret_handle)
{
	struct fake_handle *handle = calloc(1, sizeof(*handle));
	bool host = is_on_host(&properties->location);
	CUresult result;

	if (!handle)
		return CUDA_ERROR_OUT_OF_MEMORY;
	handle->properties = *properties;
	/*
	 * The flag is a request, which fails no allocation; a pointer attribute tells
	 * whether it was granted (UCX's pull request 10007).
	 */
	handle->rdma = properties->allocFlags.gpuDirectRDMACapable && !host &&
		       fake_device(properties->location.id)->vmm_rdma;
	handle->references = 1;
	/* Memory on the host counts as the first device's, but uses none of its bytes. */
	result = fake_make_backing(host ? FAKE_CUDA_HOST : FAKE_CUDA_HANDLE,
				   host ? 0 : properties->location.id, 0, size,
				   &handle->backing);
	if (result != CUDA_SUCCESS) {
		free(handle);
		return result;
	}
	memset(handle->backing->bytes, FAKE_STALE_BYTE, size);
	handle->next = fake_driver.handles;
	fake_driver.handles = handle;
	*ret_handle = handle;
	return CUDA_SUCCESS;
}

CUresult fake_cuMemCreate(CUmemGenericAllocationHandle *ret_handle, size_t size,
			  const CUmemAllocationProp *properties, unsigned long long flags)
{
	struct fake_handle *handle;
	CUresult result;

	FAKE_ENTER("cuMemCreate", FAKE_NEEDS_INIT);
	result = check_properties(properties);
	if (result != CUDA_SUCCESS)
		return result;
	if (!ret_handle || flags || size == 0 || !is_whole(size))
		return CUDA_ERROR_INVALID_VALUE;
	if (!is_on_host(&properties->location))
		result = fake_use_device(properties->location.id);
	if (result == CUDA_SUCCESS)
		result = create(size, properties, &handle);
	if (result != CUDA_SUCCESS)
		return result;
	fake_driver.control.live[FAKE_CUDA_HANDLE]++;
	*ret_handle = (uintptr_t)handle;
	return CUDA_SUCCESS;
}

CUresult fake_cuMemRelease(CUmemGenericAllocationHandle wanted)
{
	struct fake_handle *handle;

	FAKE_ENTER("cuMemRelease", FAKE_NEEDS_INIT);
	handle = find_handle(wanted);
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	handle->references--;
	fake_driver.control.live[FAKE_CUDA_HANDLE]--;
	drop_unused(handle);
	return CUDA_SUCCESS;
}

/* Handles can only be mapped from their start: "currently must be zero" (cuda.h). */
CUresult fake_cuMemMap(CUdeviceptr address, size_t size, size_t offset,
		       CUmemGenericAllocationHandle wanted, unsigned long long flags)
{
	const struct fake_piece *reservation;
	struct fake_handle *handle;
	struct fake_piece *piece;
	CUresult result;

	FAKE_ENTER("cuMemMap", FAKE_NEEDS_INIT);
	handle = find_handle(wanted);
	reservation = fake_find_reservation(address);
	if (!handle || !reservation || offset || flags || size == 0 ||
	    !is_whole(address) || !is_whole(size) || size > handle->backing->size ||
	    size > reservation->size - (address - reservation->address) ||
	    has_mappings(address, size))
		return CUDA_ERROR_INVALID_VALUE;
	result = fake_use_device(handle->backing->device);
	if (result != CUDA_SUCCESS)
		return result;
	piece = fake_add_piece(FAKE_CUDA_MAPPING, address, size);
	if (!piece)
		return CUDA_ERROR_OUT_OF_MEMORY;
	piece->backing = handle->backing;
	piece->handle = handle;
	piece->device = handle->backing->device;
	handle->mappings++;
	return CUDA_SUCCESS;
}

/* True if the range consists of whole, adjacent mappings. */
static bool is_mapped_whole(uint64_t address, uint64_t size)
{
	while (size > 0) {
		const struct fake_piece *piece = fake_find_base(FAKE_CUDA_MAPPING,
								address);

		if (!piece || piece->size > size)
			return false;
		address += piece->size;
		size -= piece->size;
	}
	return true;
}

CUresult fake_cuMemUnmap(CUdeviceptr address, size_t size)
{
	FAKE_ENTER("cuMemUnmap", FAKE_NEEDS_INIT);
	if (size == 0 || !is_mapped_whole(address, size))
		return CUDA_ERROR_INVALID_VALUE;
	for (uint64_t end = address + size; address < end;) {
		struct fake_piece *piece = fake_find_base(FAKE_CUDA_MAPPING, address);
		struct fake_handle *handle = piece->handle;

		address += piece->size;
		fake_hide(piece->address, piece->size);
		fake_remove_piece(piece);
		handle->mappings--;
		drop_unused(handle);
	}
	return CUDA_SUCCESS;
}

static CUresult set_cpu_access(struct fake_piece *piece, const CUmemAccessDesc *wanted)
{
	/* The CPU cannot access device memory. */
	if (!is_on_host(&piece->handle->properties.location))
		return CUDA_ERROR_INVALID_VALUE;
	piece->reached_by_cpu = wanted->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	if (piece->reached_by_cpu)
		return fake_show(piece->backing, piece->address) ? CUDA_SUCCESS
								 : CUDA_ERROR_MAP_FAILED;
	fake_hide(piece->address, piece->size);
	return CUDA_SUCCESS;
}

/* Only the device that has the memory is considered. */
static CUresult set_access(struct fake_piece *piece, const CUmemAccessDesc *wanted)
{
	CUresult result;

	if (is_on_host(&wanted->location))
		return set_cpu_access(piece, wanted);
	if (!fake_has_device(wanted->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	if (wanted->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	if (wanted->location.id != piece->device)
		return CUDA_SUCCESS;
	result = fake_use_device(piece->device);
	if (result != CUDA_SUCCESS)
		return result;
	piece->reachable = wanted->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	if (fake_driver.control.peer_memory && piece->reachable &&
	    !fake_show(piece->backing, piece->address))
		return CUDA_ERROR_MAP_FAILED;
	return CUDA_SUCCESS;
}

CUresult fake_cuMemSetAccess(CUdeviceptr address, size_t size,
			     const CUmemAccessDesc *wanted, size_t count)
{
	CUresult result = CUDA_SUCCESS;

	FAKE_ENTER("cuMemSetAccess", FAKE_NEEDS_INIT);
	if (size == 0 || !wanted || count == 0 || !is_mapped_whole(address, size))
		return CUDA_ERROR_INVALID_VALUE;
	for (uint64_t end = address + size; address < end && result == CUDA_SUCCESS;) {
		struct fake_piece *piece = fake_find_base(FAKE_CUDA_MAPPING, address);

		address += piece->size;
		for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
			result = set_access(piece, &wanted[i]);
	}
	return result;
}

CUresult fake_cuMemGetAccess(unsigned long long *ret_flags, const CUmemLocation *location,
			     CUdeviceptr address)
{
	struct fake_piece *piece;
	bool granted;

	FAKE_ENTER("cuMemGetAccess", FAKE_NEEDS_INIT);
	piece = fake_find(address);
	if (!ret_flags || !location || !piece || piece->kind != FAKE_CUDA_MAPPING)
		return CUDA_ERROR_INVALID_VALUE;
	if (is_on_host(location))
		granted = piece->reached_by_cpu;
	else
		granted = piece->reachable && location->id == piece->device;
	*ret_flags = granted ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
			     : CU_MEM_ACCESS_FLAGS_PROT_NONE;
	return CUDA_SUCCESS;
}

CUresult fake_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *ret_handle,
					  void *address)
{
	struct fake_piece *piece;

	FAKE_ENTER("cuMemRetainAllocationHandle", FAKE_NEEDS_INIT);
	piece = fake_find((uint64_t)(uintptr_t)address);
	if (!ret_handle || !piece || piece->kind != FAKE_CUDA_MAPPING)
		return CUDA_ERROR_INVALID_VALUE;
	piece->handle->references++;
	fake_driver.control.live[FAKE_CUDA_HANDLE]++;
	*ret_handle = (uintptr_t)piece->handle;
	return CUDA_SUCCESS;
}

CUresult fake_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *ret_properties,
						     CUmemGenericAllocationHandle wanted)
{
	struct fake_handle *handle;

	FAKE_ENTER("cuMemGetAllocationPropertiesFromHandle", FAKE_NEEDS_INIT);
	handle = find_handle(wanted);
	if (!ret_properties || !handle)
		return CUDA_ERROR_INVALID_VALUE;
	*ret_properties = handle->properties;
	return CUDA_SUCCESS;
}
