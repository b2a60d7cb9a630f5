/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include <string.h>

#include "fake.h"

/* As in the driver, allocations up to this size share a block of 2 MiB. */
#define SMALL	 (1ull << 20)
#define SUBALIGN 512

/*
 * A block of addresses for small allocations of one kind and device. Each run of pages
 * with some of them has its own memfd, and all of them begin in its first page, because a
 * memfd cannot be exported from its middle. The first 512 bytes stay empty, so small
 * allocations never begin at a host page.
 */
struct block {
	struct block *next;
	enum fake_cuda_kind kind;
	int device;
	uint64_t address;
	uint64_t id;
};

static struct block *blocks;

static bool lies_in(const struct block *block, uint64_t address)
{
	return address >= block->address && address - block->address < FAKE_GRANULARITY;
}

static bool is_free(const struct fake_backing *backing, uint64_t offset, uint64_t size)
{
	for (struct fake_piece *piece = fake_driver.pieces; piece; piece = piece->next)
		if (piece->backing == backing && offset < piece->offset + piece->size &&
		    piece->offset < offset + size)
			return false;
	return true;
}

/* Returns 0 if there is no room. */
static uint64_t find_offset(const struct fake_backing *run, uint64_t size)
{
	for (uint64_t offset = SUBALIGN; offset < fake_page(); offset += SUBALIGN)
		if (offset + size <= run->size && is_free(run, offset, size))
			return offset;
	return 0;
}

static struct fake_backing *find_run(enum fake_cuda_kind kind, int device, uint64_t size)
{
	struct fake_backing *run = fake_driver.backings;

	for (; run; run = run->next)
		if (run->kind == kind && run->device == device && run->address &&
		    run->size < FAKE_GRANULARITY && find_offset(run, size))
			break;
	return run;
}

/* Returns a run of free pages of a block, or 0. */
static uint64_t find_pages(const struct block *block, uint64_t size)
{
	uint64_t at = block->address, end = block->address + FAKE_GRANULARITY;
	struct fake_backing *run = fake_driver.backings;

	while (run && at + size <= end) {
		if (at < run->address + run->size && run->address < at + size) {
			at = run->address + run->size;
			run = fake_driver.backings;
		} else {
			run = run->next;
		}
	}
	return at + size <= end ? at : 0;
}

static struct block *add_block(enum fake_cuda_kind kind, int device)
{
	struct block *block = calloc(1, sizeof(*block));

	if (!block)
		return NULL;
	*block = (struct block){ blocks, kind, device,
				 fake_take_addresses(FAKE_GRANULARITY, 1),
				 ++fake_driver.last_id };
	if (!block->address) {
		free(block);
		return NULL;
	}
	blocks = block;
	return block;
}

static void drop_empty_block(uint64_t address)
{
	struct block **link = &blocks, *block;

	while (*link && !lies_in(*link, address))
		link = &(*link)->next;
	block = *link;
	for (struct fake_backing *run = fake_driver.backings; run; run = run->next)
		if (lies_in(block, run->address))
			return;
	*link = block->next;
	fake_give_addresses(block->address, FAKE_GRANULARITY);
	free(block);
}

static CUresult make_run(enum fake_cuda_kind kind, int device, uint64_t size,
			 struct fake_backing **ret_run)
{
	uint64_t whole = fake_round_up(SUBALIGN + size, fake_page());
	struct block *block = blocks;
	CUresult result;

	while (block && (block->kind != kind || block->device != device ||
			 !find_pages(block, whole)))
		block = block->next;
	if (!block)
		block = add_block(kind, device);
	if (!block)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = fake_make_backing(kind, device, find_pages(block, whole), whole,
				   ret_run);
	if (result == CUDA_SUCCESS)
		/* The application sees the block as one piece of physical memory. */
		(*ret_run)->block = block->id;
	else
		drop_empty_block(block->address);
	return result;
}

static CUresult make_whole(enum fake_cuda_kind kind, int device, uint64_t size,
			   struct fake_backing **ret_backing)
{
	uint64_t unit = kind == FAKE_CUDA_HOST ? fake_page() : FAKE_GRANULARITY, address;
	CUresult result;

	if (size > UINT64_MAX - unit)
		return CUDA_ERROR_OUT_OF_MEMORY;
	address = fake_take_addresses(size, 1);
	if (!address)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = fake_make_backing(kind, device, address, fake_round_up(size, unit),
				   ret_backing);
	if (result != CUDA_SUCCESS)
		fake_give_addresses(address, size);
	return result;
}

static void put_backing(struct fake_backing *backing)
{
	uint64_t address = backing->address, size = backing->size;
	bool small = size < FAKE_GRANULARITY && backing->kind != FAKE_CUDA_HOST &&
		     backing->kind != FAKE_CUDA_OPENED;

	if (backing->pieces > 0)
		return;
	fake_drop_backing(backing);
	if (small)
		drop_empty_block(address);
	else
		fake_give_addresses(address, size);
}

CUresult fake_allocate(enum fake_cuda_kind kind, CUcontext context, uint64_t size,
		       uint64_t *ret_address)
{
	bool small = size <= SMALL && kind != FAKE_CUDA_HOST && kind != FAKE_CUDA_MANAGED;
	struct fake_backing *backing = NULL;
	struct fake_piece *piece;
	CUresult result = CUDA_SUCCESS;
	uint64_t offset;

	if (size == 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (small)
		backing = find_run(kind, context->device, size);
	if (!backing)
		result = (small ? make_run : make_whole)(kind, context->device, size,
							 &backing);
	if (result != CUDA_SUCCESS)
		return result;
	offset = small ? find_offset(backing, size) : 0;
	piece = fake_add_piece(kind, backing->address + offset, size);
	if (!piece) {
		put_backing(backing);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	piece->backing = backing;
	piece->offset = offset;
	piece->device = context->device;
	/* Pool memory belongs to a device, not to a context. */
	piece->context = kind == FAKE_CUDA_POOL_MEMORY ? NULL : context;
	backing->pieces++;
	memset(backing->bytes + offset, FAKE_STALE_BYTE, size);
	*ret_address = piece->address;
	return CUDA_SUCCESS;
}

void fake_free(struct fake_piece *piece)
{
	struct fake_backing *backing = piece->backing;

	/* It waits for all that may use the memory. */
	fake_run_all_copies();
	fake_remove_piece(piece);
	if (!backing)
		return;
	backing->pieces--;
	put_backing(backing);
}

void fake_free_context_memory(CUcontext context)
{
	struct fake_piece *piece = fake_driver.pieces;

	while (piece) {
		struct fake_piece *next = piece->next;

		if (piece->context == context)
			fake_free(piece);
		piece = next;
	}
}

CUresult fake_cuMemGetInfo_v2(size_t *ret_free, size_t *ret_all)
{
	const struct fake_cuda_device *device;

	FAKE_ENTER("cuMemGetInfo", FAKE_NEEDS_DEVICE);
	if (!ret_free || !ret_all)
		return CUDA_ERROR_INVALID_VALUE;
	device = fake_device(scope.device);
	*ret_free = device->memory - device->memory_used;
	*ret_all = device->memory;
	return CUDA_SUCCESS;
}

CUresult fake_cuMemAlloc_v2(CUdeviceptr *ret_address, size_t size)
{
	uint64_t address;
	CUresult result;

	FAKE_ENTER("cuMemAlloc", FAKE_NEEDS_DEVICE);
	if (!ret_address)
		return CUDA_ERROR_INVALID_VALUE;
	result = fake_allocate(FAKE_CUDA_DEVICE_MEMORY, scope.current, size, &address);
	if (result == CUDA_SUCCESS)
		*ret_address = address;
	return result;
}

CUresult fake_cuMemAllocManaged(CUdeviceptr *ret_address, size_t size, unsigned int flags)
{
	uint64_t address;
	CUresult result;

	FAKE_ENTER("cuMemAllocManaged", FAKE_NEEDS_DEVICE);
	if (!ret_address ||
	    (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
		return CUDA_ERROR_INVALID_VALUE;
	result = fake_allocate(FAKE_CUDA_MANAGED, scope.current, size, &address);
	if (result == CUDA_SUCCESS)
		*ret_address = address;
	return result;
}

CUresult fake_cuMemAllocAsync(CUdeviceptr *ret_address, size_t size, CUstream stream)
{
	uint64_t address;
	CUresult result;

	FAKE_ENTER("cuMemAllocAsync", FAKE_NEEDS_DEVICE);
	if (!ret_address)
		return CUDA_ERROR_INVALID_VALUE;
	if (!fake_is_stream(stream))
		return CUDA_ERROR_INVALID_HANDLE;
	if (!fake_device(scope.device)->pools)
		return CUDA_ERROR_NOT_SUPPORTED;
	result = fake_allocate(FAKE_CUDA_POOL_MEMORY, scope.current, size, &address);
	if (result == CUDA_SUCCESS)
		*ret_address = address;
	return result;
}

/* Frees whole allocations only, and needs a context of their device. */
static CUresult free_device_memory(const struct fake_scope *scope, uint64_t address)
{
	struct fake_piece *piece = fake_find_base(FAKE_CUDA_DEVICE_MEMORY, address);

	if (!piece)
		piece = fake_find_base(FAKE_CUDA_POOL_MEMORY, address);
	if (!piece)
		piece = fake_find_base(FAKE_CUDA_MANAGED, address);
	if (!piece || piece->device != scope->device)
		return CUDA_ERROR_INVALID_VALUE;
	fake_check_sharers(piece);
	fake_free(piece);
	return CUDA_SUCCESS;
}

CUresult fake_cuMemFree_v2(CUdeviceptr address)
{
	FAKE_ENTER("cuMemFree", FAKE_NEEDS_DEVICE);
	return free_device_memory(&scope, address);
}

CUresult fake_cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
	FAKE_ENTER("cuMemFreeAsync", FAKE_NEEDS_DEVICE);
	if (!fake_is_stream(stream))
		return CUDA_ERROR_INVALID_HANDLE;
	return free_device_memory(&scope, address);
}
