/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>

#include "fake.h"

static bool is_host_memory(const struct fake_piece *piece)
{
	/* Mappings of host memory count as well. */
	return piece->kind == FAKE_CUDA_HOST || piece->kind == FAKE_CUDA_REGISTERED ||
	       (piece->handle && piece->backing->kind == FAKE_CUDA_HOST);
}

static bool is_rdma_capable(const struct fake_piece *piece)
{
	if (piece->kind == FAKE_CUDA_MAPPING)
		return piece->handle->rdma;
	return piece->kind == FAKE_CUDA_DEVICE_MEMORY && fake_device(piece->device)->rdma;
}

static bool lacks_ids(const struct fake_piece *piece)
{
	return piece->kind == FAKE_CUDA_MAPPING && fake_driver.control.no_mapping_ids;
}

static bool lacks_range(const struct fake_piece *piece)
{
	return piece->kind == FAKE_CUDA_REGISTERED && fake_driver.control.no_host_ranges;
}

/* A value of up to eight bytes. */
struct value {
	uint64_t bits;
	size_t size;
};

static struct value number(uint64_t value)
{
	return (struct value){ value, sizeof(uint64_t) };
}

/* unsigned int, int and the booleans. */
static struct value word(unsigned int value)
{
	return (struct value){ value, sizeof(unsigned int) };
}

/* An attribute's value for pointers that are not the driver's. */
static struct value nothing(CUpointer_attribute attribute)
{
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		return word((unsigned int)CU_DEVICE_INVALID);
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
	case CU_POINTER_ATTRIBUTE_MAPPED:
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
		return word(0);
	default:
		return number(0);
	}
}

static const struct fake_piece *whole_of(const struct fake_piece *piece)
{
	/* For a mapping, the reservation around it. */
	return piece->kind == FAKE_CUDA_MAPPING ? fake_find_reservation(piece->address)
						: piece;
}

/* Attributes that appeared in cuda.h of CUDA 10.2 or later. */
static CUresult find_newer(const struct fake_piece *piece, CUpointer_attribute attribute,
			   struct value *ret)
{
	if (lacks_range(piece) && (attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR ||
				   attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE))
		return CUDA_ERROR_INVALID_VALUE;
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*ret = number(whole_of(piece)->address);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*ret = number(whole_of(piece)->size);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		*ret = word(piece->kind != FAKE_CUDA_RESERVATION);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		*ret = number(piece->handle
				      ? piece->handle->properties.requestedHandleTypes
				      : CU_MEM_HANDLE_TYPE_NONE);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
		*ret = word(is_rdma_capable(piece));
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		*ret = number(piece->kind == FAKE_CUDA_MAPPING && !piece->reachable
				      ? CU_MEM_ACCESS_FLAGS_PROT_NONE
				      : CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		*ret = number(piece->kind == FAKE_CUDA_POOL_MEMORY
				      ? (uintptr_t)fake_device(piece->device)
				      : 0);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		*ret = number(piece->size);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		*ret = number(piece->address);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		*ret = number(piece->backing ? piece->backing->block : piece->id);
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUresult find_value(const struct fake_scope *scope, const struct fake_piece *piece,
			   uint64_t address, CUpointer_attribute attribute,
			   struct value *ret)
{
	bool host = is_host_memory(piece);

	if (lacks_ids(piece) && (attribute == CU_POINTER_ATTRIBUTE_BUFFER_ID ||
				 attribute == CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID))
		return CUDA_ERROR_INVALID_VALUE;
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		/* NULL for mappings and pool memory. */
		*ret = number((uintptr_t)piece->context);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*ret = word(host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		*ret = number(address);
		return scope->current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		*ret = number(address);
		return host || piece->kind == FAKE_CUDA_MANAGED
			       ? CUDA_SUCCESS
			       : CUDA_ERROR_INVALID_VALUE;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		*ret = word(piece->sync_memops);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		/* The id says nothing about the mappings inside. */
		*ret = number(whole_of(piece)->id);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		*ret = word(piece->kind == FAKE_CUDA_MANAGED ||
			    (piece->kind == FAKE_CUDA_POOL_MEMORY &&
			     fake_driver.control.managed_pools));
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*ret = word((unsigned int)piece->device);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		*ret = word(piece->kind == FAKE_CUDA_DEVICE_MEMORY);
		return CUDA_SUCCESS;
	default:
		return find_newer(piece, attribute, ret);
	}
}

/* The first version of CUDA whose cuda.h has the attribute. */
static int attribute_since(CUpointer_attribute attribute)
{
	if (attribute <= CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
		return 9020;
	if (attribute <= CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)
		return 10020;
	if (attribute <= CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE)
		return 11000;
	if (attribute <= CU_POINTER_ATTRIBUTE_ACCESS_FLAGS)
		return 11010;
	if (attribute <= CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE)
		return 11020;
	if (attribute <= CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR)
		return 11030;
	return 12000;
}

static bool is_known(CUpointer_attribute attribute)
{
	/* Tokens belong to the kernel interface that preceded dma-bufs. */
	return attribute >= CU_POINTER_ATTRIBUTE_CONTEXT &&
	       attribute <= CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID &&
	       attribute != CU_POINTER_ATTRIBUTE_P2P_TOKENS &&
	       fake_driver.control.version >= attribute_since(attribute);
}

/*
 * Returns the memory, or the reservation without memory, for which only some attributes
 * exist.
 */
static const struct fake_piece *find_piece(uint64_t address,
					   CUpointer_attribute attribute)
{
	const struct fake_piece *piece = fake_find(address);

	if (!piece && (attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR ||
		       attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE ||
		       attribute == CU_POINTER_ATTRIBUTE_MAPPED))
		piece = fake_find_reservation(address);
	return piece;
}

CUresult fake_cuPointerGetAttribute(void *ret_value, CUpointer_attribute attribute,
				    CUdeviceptr address)
{
	const struct fake_piece *piece;
	struct value value;
	CUresult result;

	FAKE_ENTER("cuPointerGetAttribute", FAKE_NEEDS_INIT);
	piece = find_piece(address, attribute);
	if (!ret_value || !is_known(attribute) || !piece)
		return CUDA_ERROR_INVALID_VALUE;
	result = find_value(&scope, piece, address, attribute, &value);
	if (result == CUDA_SUCCESS)
		memcpy(ret_value, &value.bits, value.size);
	return result;
}

/* If the single form would fail because of the pointer, this one returns zeros. */
CUresult fake_cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes,
				     void **ret_values, CUdeviceptr address)
{
	FAKE_ENTER("cuPointerGetAttributes", FAKE_NEEDS_INIT);
	if (!count || !attributes || !ret_values)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned int i = 0; i < count; i++)
		if (!is_known(attributes[i]) || !ret_values[i])
			return CUDA_ERROR_INVALID_VALUE;
	for (unsigned int i = 0; i < count; i++) {
		const struct fake_piece *piece = find_piece(address, attributes[i]);
		struct value value = nothing(attributes[i]);

		if (!piece || find_value(&scope, piece, address, attributes[i], &value) !=
				      CUDA_SUCCESS)
			value = nothing(attributes[i]);
		memcpy(ret_values[i], &value.bits, value.size);
	}
	return CUDA_SUCCESS;
}

/* Fails for mappings and pools, which have a flag of their context instead. */
CUresult fake_cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
				    CUdeviceptr address)
{
	struct fake_piece *piece;

	FAKE_ENTER("cuPointerSetAttribute", FAKE_NEEDS_DEVICE);
	piece = fake_find(address);
	if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !piece ||
	    piece->device != scope.device)
		return CUDA_ERROR_INVALID_VALUE;
	if (!piece->context)
		return CUDA_ERROR_NOT_SUPPORTED;
	piece->sync_memops = *(const unsigned int *)value != 0;
	return CUDA_SUCCESS;
}

/*
 * For mappings, returns only the one around the address, even if the next is adjacent.
 * Memory of devices other than the context's, and managed memory, is not found.
 */
CUresult fake_cuMemGetAddressRange_v2(CUdeviceptr *ret_base, size_t *ret_size,
				      CUdeviceptr address)
{
	const struct fake_piece *piece;

	FAKE_ENTER("cuMemGetAddressRange", FAKE_NEEDS_DEVICE);
	piece = fake_find(address);
	if (!piece || piece->device != scope.device || piece->kind == FAKE_CUDA_MANAGED ||
	    piece->kind == FAKE_CUDA_REGISTERED)
		return CUDA_ERROR_NOT_FOUND;
	if (ret_base)
		*ret_base = piece->address;
	if (ret_size)
		*ret_size = piece->size;
	return CUDA_SUCCESS;
}
