/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The fake CUDA driver: mappings of cuMemCreate() memory, and what it reports about
 * pointers.
 */

#include <fcntl.h>
#include <unistd.h>

#include "fake_cuda_map.h"

static CUresult export_range(CUdeviceptr address, uint64_t size)
{
	int fd = -1;
	CUresult result = driver.cuMemGetHandleForAddressRange(
		&fd, address, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);

	assert_int_equal(fd >= 0, result == CUDA_SUCCESS);
	if (fd >= 0)
		close(fd);
	return result;
}

static void sizes_must_be_multiples_of_the_granularity(void **state)
{
	CUmemAllocationProp other = pinned;
	CUmemGenericAllocationHandle handle;
	CUdeviceptr address;
	size_t unit;

	(void)state;
	assert_int_equal(driver.cuMemGetAllocationGranularity(
				 &unit, &pinned, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
			 CUDA_SUCCESS);
	assert_int_equal(unit, 2 * MIB);
	assert_int_equal(driver.cuMemCreate(&handle, MIB, &pinned, 0),
			 CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(driver.cuMemAddressReserve(&address, MIB, 0, 0, 0),
			 CUDA_ERROR_INVALID_VALUE);
	other.location.id = 2;
	assert_int_equal(driver.cuMemCreate(&handle, 2 * MIB, &other, 0),
			 CUDA_ERROR_INVALID_DEVICE);
	fake->device[0].memory = 2 * MIB;
	assert_int_equal(driver.cuMemCreate(&handle, 4 * MIB, &pinned, 0),
			 CUDA_ERROR_OUT_OF_MEMORY);
}

static void memory_can_be_mapped_twice(void **state)
{
	CUmemGenericAllocationHandle handle = create(2 * MIB, &pinned);
	CUdeviceptr address = reserve(6 * MIB);
	char byte = 'a';

	(void)state;
	assert_int_equal(driver.cuMemMap(address, 2 * MIB, 0, handle, 0), CUDA_SUCCESS);
	/* No device can access it yet. */
	assert_int_equal(driver.cuMemcpyHtoD_v2(address, &byte, 1),
			 CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(driver.cuMemMap(address, 2 * MIB, 0, handle, 0),
			 CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(driver.cuMemMap(address + 2 * MIB, 4 * MIB, 0, handle, 0),
			 CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(driver.cuMemMap(address + 4 * MIB, 2 * MIB, 0, handle, 0),
			 CUDA_SUCCESS);
	assert_int_equal(driver.cuMemSetAccess(address, 4 * MIB, &reachable, 1),
			 CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(driver.cuMemSetAccess(address, 2 * MIB, &reachable, 1),
			 CUDA_SUCCESS);
	assert_int_equal(driver.cuMemcpyHtoD_v2(address + 5, &byte, 1), CUDA_SUCCESS);
	assert_int_equal(driver.cuMemSetAccess(address + 4 * MIB, 2 * MIB, &reachable, 1),
			 CUDA_SUCCESS);
	byte = 0;
	assert_int_equal(driver.cuMemcpyDtoH_v2(&byte, address + 4 * MIB + 5, 1),
			 CUDA_SUCCESS);
	assert_int_equal(byte, 'a');
	assert_int_equal(driver.cuMemRelease(handle), CUDA_SUCCESS);
	assert_int_equal(driver.cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(driver.cuMemAddressFree(address, 6 * MIB),
			 CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(driver.cuMemUnmap(address, MIB), CUDA_ERROR_INVALID_VALUE);
	unmap(address, 2 * MIB);
	assert_int_equal(fake->device[0].memory_used, 2 * MIB);
	unmap(address + 4 * MIB, 2 * MIB);
	assert_int_equal(fake->device[0].memory_used, 0);
	give_back(address, 6 * MIB);
}

/* Segments are adjacent without a gap, and each is reported separately. */
static void detects_seams(void **state)
{
	CUdeviceptr address = reserve(6 * MIB), base;
	char bytes[4] = "wxyz", back[4] = "";
	size_t size;

	(void)state;
	map_new(address, 2 * MIB, &pinned);
	map_new(address + 2 * MIB, 2 * MIB, &pinned);
	assert_int_equal(driver.cuMemGetAddressRange_v2(&base, &size, address + 3 * MIB),
			 CUDA_SUCCESS);
	assert_int_equal(base, address + 2 * MIB);
	assert_int_equal(size, 2 * MIB);
	assert_int_equal(driver.cuMemcpyHtoD_v2(address + 2 * MIB - 2, bytes, 4),
			 CUDA_SUCCESS);
	assert_int_equal(driver.cuMemcpyDtoH_v2(back, address + 2 * MIB - 2, 4),
			 CUDA_SUCCESS);
	assert_memory_equal(bytes, back, 4);
	assert_int_equal(driver.cuMemcpyHtoD_v2(address + 4 * MIB - 2, bytes, 4),
			 CUDA_ERROR_INVALID_VALUE);
	fake->windows = FAKE_CUDA_WINDOWS_COPIED;
	assert_int_equal(export_range(address, 2 * MIB), CUDA_SUCCESS);
	assert_int_equal(export_range(address + 2 * MIB, 2 * MIB), CUDA_SUCCESS);
	assert_int_equal(export_range(address, 4 * MIB), CUDA_ERROR_INVALID_VALUE);
	fake->device[0].seams = FAKE_CUDA_SEAMS_JOINED;
	assert_int_equal(export_range(address, 4 * MIB), CUDA_SUCCESS);
	/* Not all of it is mapped. */
	assert_int_equal(export_range(address, 6 * MIB), CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(export_range(address + 4 * MIB, 2 * MIB),
			 CUDA_ERROR_INVALID_VALUE);
	unmap(address, 4 * MIB);
	assert_int_equal(export_range(address, 2 * MIB), CUDA_ERROR_INVALID_VALUE);
	give_back(address, 6 * MIB);
}

static void mappings_must_be_made_for_rdma(void **state)
{
	CUmemAllocationProp plain = pinned, told;
	CUdeviceptr address = reserve(4 * MIB);
	CUmemGenericAllocationHandle handle;
	unsigned int capable;

	(void)state;
	plain.allocFlags.gpuDirectRDMACapable = 0;
	map_new(address, 2 * MIB, &pinned);
	map_new(address + 2 * MIB, 2 * MIB, &plain);
	fake->device[0].seams = FAKE_CUDA_SEAMS_JOINED;
	fake->windows = FAKE_CUDA_WINDOWS_COPIED;
	assert_int_equal(export_range(address, 2 * MIB), CUDA_SUCCESS);
	assert_int_equal(export_range(address + 2 * MIB, 2 * MIB),
			 CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(export_range(address, 4 * MIB), CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(driver.cuPointerGetAttribute(
				 &capable,
				 CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
				 address + 2 * MIB),
			 CUDA_SUCCESS);
	assert_int_equal(capable, 0);
	assert_int_equal(driver.cuMemRetainAllocationHandle(
				 &handle, (void *)(uintptr_t)(address + 3 * MIB)),
			 CUDA_SUCCESS);
	assert_int_equal(driver.cuMemGetAllocationPropertiesFromHandle(&told, handle),
			 CUDA_SUCCESS);
	assert_memory_equal(&told, &plain, sizeof(told));
	unmap(address, 4 * MIB);
	assert_int_equal(fake->device[0].memory_used, 2 * MIB);
	assert_int_equal(driver.cuMemRelease(handle), CUDA_SUCCESS);
	/* The flag is a request: memory that was made with it may be without. */
	fake->device[0].vmm_rdma = false;
	map_new(address, 2 * MIB, &pinned);
	assert_int_equal(driver.cuPointerGetAttribute(
				 &capable,
				 CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
				 address),
			 CUDA_SUCCESS);
	assert_int_equal(capable, 0);
	assert_int_equal(export_range(address, 2 * MIB), CUDA_ERROR_INVALID_VALUE);
	unmap(address, 2 * MIB);
	give_back(address, 4 * MIB);
}

/* If the kernel has udmabuf: parts of any kind, and several as one. */
static void dmabufs_are_made_by_udmabuf(void **state)
{
	CUdeviceptr address = reserve(4 * MIB), plain = allocate(3 * MIB);
	int fd;

	(void)state;
	map_new(address, 2 * MIB, &pinned);
	map_new(address + 2 * MIB, 2 * MIB, &pinned);
	fake->restore();
	if (fake->udmabuf) {
		assert_int_equal(export_range(plain + MIB, MIB), CUDA_SUCCESS);
		assert_int_equal(export_range(address, 4 * MIB),
				 CUDA_ERROR_INVALID_VALUE);
		fake->device[0].seams = FAKE_CUDA_SEAMS_JOINED;
		assert_int_equal(driver.cuMemGetHandleForAddressRange(&fd, address + MIB,
								      2 * MIB, 1, 0),
				 CUDA_SUCCESS);
		assert_int_equal(lseek(fd, 0, SEEK_END), 2 * MIB);
		assert_int_equal(fcntl(fd, F_GET_SEALS), -1);
		close(fd);
	}
	unmap(address, 4 * MIB);
	give_back(address, 4 * MIB);
	release(plain);
	if (fake->udmabuf)
		return;
	print_message("skipped: no /dev/udmabuf\n");
	skip();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		fixture_test(sizes_must_be_multiples_of_the_granularity),
		fixture_test(memory_can_be_mapped_twice),
		fixture_test(detects_seams),
		fixture_test(mappings_must_be_made_for_rdma),
		fixture_test(dmabufs_are_made_by_udmabuf),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
