/* SPDX-License-Identifier: BSD-3-Clause */

/* The fake CUDA driver: what it reports about pointers. */

#include "fake_cuda_map.h"

static uint64_t ask_number(CUdeviceptr address, CUpointer_attribute attribute)
{
	uint64_t number = 0;

	assert_int_equal(driver.cuPointerGetAttribute(&number, attribute, address),
			 CUDA_SUCCESS);
	return number;
}

/* Physical memory is identified by handle or block, buffers by reservation. */
static void distinguishes_physical_memory(void **state)
{
	const CUpointer_attribute buffer = CU_POINTER_ATTRIBUTE_BUFFER_ID;
	const CUpointer_attribute block = CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID;
	CUdeviceptr address = reserve(4 * MIB), small = allocate(100),
		    next = allocate(100);
	uint64_t id;

	(void)state;
	assert_int_not_equal(ask_number(small, buffer), ask_number(next, buffer));
	assert_int_equal(ask_number(small, block), ask_number(next, block));
	map_new(address, 2 * MIB, &pinned);
	map_new(address + 2 * MIB, 2 * MIB, &pinned);
	id = ask_number(address, block);
	assert_int_equal(ask_number(address, buffer),
			 ask_number(address + 3 * MIB, buffer));
	assert_int_not_equal(id, ask_number(address + 3 * MIB, block));
	unmap(address, 2 * MIB);
	map_new(address, 2 * MIB, &pinned);
	assert_int_not_equal(id, ask_number(address, block));
	unmap(address, 4 * MIB);
	give_back(address, 4 * MIB);
	release(small);
	release(next);
}

/* The answer of cuPointerGetAttributes() for one address. */
struct said {
	CUcontext context;
	unsigned int type, managed, mapped, capable;
	int device;
	void *pool;
	CUdeviceptr start;
	size_t size;
};

static struct said ask(CUdeviceptr address)
{
	CUpointer_attribute names[] = {
		CU_POINTER_ATTRIBUTE_CONTEXT,
		CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
		CU_POINTER_ATTRIBUTE_IS_MANAGED,
		CU_POINTER_ATTRIBUTE_MAPPED,
		CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
		CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
		CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
		CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
		CU_POINTER_ATTRIBUTE_RANGE_SIZE,
	};
	struct said said;
	void *places[] = { &said.context, &said.type,	 &said.managed,
			   &said.mapped,  &said.capable, &said.device,
			   &said.pool,	  &said.start,	 &said.size };

	memset(&said, 0x77, sizeof(said));
	assert_int_equal(driver.cuPointerGetAttributes(9, names, places, address),
			 CUDA_SUCCESS);
	return said;
}

static void foreign_pointers_have_no_attributes(void **state)
{
	int own = 0;
	struct said said = ask((uintptr_t)&own);
	unsigned int type;

	(void)state;
	assert_null(said.context);
	assert_int_equal(said.type, 0);
	assert_int_equal(said.device, CU_DEVICE_INVALID);
	assert_int_equal(driver.cuPointerGetAttribute(&type,
						      CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
						      (uintptr_t)&own),
			 CUDA_ERROR_INVALID_VALUE);
}

static void device_memory_is_described(void **state)
{
	CUdeviceptr plain = allocate(3 * MIB), pool;
	unsigned int one = 1, sync = 0;
	struct said said = ask(plain + 5);

	(void)state;
	assert_ptr_equal(said.context, context);
	assert_int_equal(said.type, CU_MEMORYTYPE_DEVICE);
	assert_int_equal(said.capable, 1);
	assert_int_equal(said.start, plain);
	assert_int_equal(said.size, 3 * MIB);
	assert_null(said.pool);
	assert_int_equal(driver.cuPointerSetAttribute(
				 &one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, plain),
			 CUDA_SUCCESS);
	assert_int_equal(driver.cuPointerGetAttribute(
				 &sync, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, plain),
			 CUDA_SUCCESS);
	assert_int_equal(sync, 1);
	release(plain);
	assert_int_equal(driver.cuMemAllocAsync(&pool, 5000, NULL), CUDA_SUCCESS);
	said = ask(pool);
	assert_null(said.context);
	assert_non_null(said.pool);
	assert_int_equal(said.device, 0);
	assert_int_equal(said.capable, 0);
	assert_int_equal(driver.cuPointerSetAttribute(
				 &one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, pool),
			 CUDA_ERROR_NOT_SUPPORTED);
	release(pool);
}

static void other_kinds_are_described(void **state)
{
	CUdeviceptr managed, address = reserve(4 * MIB);
	unsigned int one = 1;
	struct said said;
	void *host;

	(void)state;
	assert_int_equal(driver.cuMemAllocManaged(&managed, 5, CU_MEM_ATTACH_GLOBAL),
			 CUDA_SUCCESS);
	said = ask(managed);
	assert_int_equal(said.managed, 1);
	assert_int_equal(said.type, CU_MEMORYTYPE_DEVICE);
	release(managed);
	assert_int_equal(driver.cuMemHostAlloc(&host, 5, 0), CUDA_SUCCESS);
	said = ask((uintptr_t)host);
	assert_int_equal(said.type, CU_MEMORYTYPE_HOST);
	assert_ptr_equal(said.context, context);
	assert_int_equal(driver.cuMemFreeHost(host), CUDA_SUCCESS);
	map_new(address, 2 * MIB, &pinned);
	said = ask(address + MIB);
	assert_null(said.context);
	assert_int_equal(said.mapped, 1);
	assert_int_equal(said.start, address);
	assert_int_equal(said.size, 4 * MIB);
	assert_int_equal(driver.cuPointerSetAttribute(
				 &one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address),
			 CUDA_ERROR_NOT_SUPPORTED);
	said = ask(address + 3 * MIB);
	assert_int_equal(said.mapped, 0);
	assert_int_equal(said.type, 0);
	assert_int_equal(said.size, 4 * MIB);
	unmap(address, 2 * MIB);
	give_back(address, 4 * MIB);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		fixture_test(distinguishes_physical_memory),
		fixture_test(foreign_pointers_have_no_attributes),
		fixture_test(device_memory_is_described),
		fixture_test(other_kinds_are_described),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
