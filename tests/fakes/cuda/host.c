/* SPDX-License-Identifier: BSD-3-Clause */
#include <sys/mman.h>

#include "fake.h"

/* Page-locked host memory, allocated by the driver or by the application. */

#define HOST_FLAGS                                              \
	(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | \
	 CU_MEMHOSTALLOC_WRITECOMBINED)
#define REGISTER_FLAGS                                                \
	(CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | \
	 CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY)

static CUresult allocate(const struct fake_scope *scope, void **ret_memory, size_t size)
{
	uint64_t address;
	CUresult result;

	if (!ret_memory)
		return CUDA_ERROR_INVALID_VALUE;
	result = fake_allocate(FAKE_CUDA_HOST, scope->current, size, &address);
	if (result == CUDA_SUCCESS)
		*ret_memory = (void *)(uintptr_t)address;
	return result;
}

CUresult fake_cuMemHostAlloc(void **ret_memory, size_t size, unsigned int flags)
{
	FAKE_ENTER("cuMemHostAlloc", FAKE_NEEDS_DEVICE);
	if (flags & ~(unsigned int)HOST_FLAGS)
		return CUDA_ERROR_INVALID_VALUE;
	return allocate(&scope, ret_memory, size);
}

CUresult fake_cuMemAllocHost_v2(void **ret_memory, size_t size)
{
	FAKE_ENTER("cuMemAllocHost", FAKE_NEEDS_DEVICE);
	return allocate(&scope, ret_memory, size);
}

CUresult fake_cuMemFreeHost(void *memory)
{
	struct fake_piece *piece;

	FAKE_ENTER("cuMemFreeHost", FAKE_NEEDS_DEVICE);
	piece = fake_find_base(FAKE_CUDA_HOST, (uint64_t)(uintptr_t)memory);
	if (!piece)
		return CUDA_ERROR_INVALID_VALUE;
	fake_free(piece);
	return CUDA_SUCCESS;
}

/* msync() returns ENOMEM if nothing is mapped. */
static bool is_mapped(uint64_t from, uint64_t to)
{
	return msync((void *)(uintptr_t)from, to - from, MS_ASYNC) == 0;
}

static bool overlaps_another(uint64_t from, uint64_t to)
{
	for (struct fake_piece *piece = fake_driver.pieces; piece; piece = piece->next)
		if (piece->kind == FAKE_CUDA_REGISTERED &&
		    from < piece->address + piece->size && piece->address < to)
			return true;
	return false;
}

CUresult fake_cuMemHostRegister_v2(void *memory, size_t size, unsigned int flags)
{
	uint64_t address = (uint64_t)(uintptr_t)memory, page = fake_page(), from, to;
	struct fake_piece *piece;

	FAKE_ENTER("cuMemHostRegister", FAKE_NEEDS_DEVICE);
	if (!memory || size == 0 || flags & ~(unsigned int)REGISTER_FLAGS ||
	    size > UINT64_MAX - page - address || fake_in_arena(address))
		return CUDA_ERROR_INVALID_VALUE;
	from = address / page * page;
	to = fake_round_up(address + size, page);
	if (!is_mapped(from, to))
		return CUDA_ERROR_INVALID_VALUE;
	if (overlaps_another(address, address + size))
		return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	piece = fake_add_piece(FAKE_CUDA_REGISTERED, address, size);
	if (!piece)
		return CUDA_ERROR_OUT_OF_MEMORY;
	piece->context = scope.current;
	piece->device = scope.device;
	return CUDA_SUCCESS;
}

CUresult fake_cuMemHostUnregister(void *memory)
{
	struct fake_piece *piece;

	FAKE_ENTER("cuMemHostUnregister", FAKE_NEEDS_DEVICE);
	piece = fake_find_base(FAKE_CUDA_REGISTERED, (uint64_t)(uintptr_t)memory);
	if (!piece)
		return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	fake_free(piece);
	return CUDA_SUCCESS;
}

CUresult fake_cuMemHostGetDevicePointer_v2(CUdeviceptr *ret_address, void *memory,
					   unsigned int flags)
{
	struct fake_piece *piece;

	FAKE_ENTER("cuMemHostGetDevicePointer", FAKE_NEEDS_DEVICE);
	piece = fake_find((uint64_t)(uintptr_t)memory);
	if (!ret_address || flags || !piece ||
	    (piece->kind != FAKE_CUDA_HOST && piece->kind != FAKE_CUDA_REGISTERED))
		return CUDA_ERROR_INVALID_VALUE;
	*ret_address = (CUdeviceptr)(uintptr_t)memory;
	return CUDA_SUCCESS;
}
