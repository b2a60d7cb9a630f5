/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_UNIT_FAKE_CUDA_MAP_H
#define TESTS_UNIT_FAKE_CUDA_MAP_H

/* Memory of cuMemCreate() and its mappings. */

#include "fake_cuda_fixture.h"

static const CUmemAllocationProp pinned = {
	.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
	.allocFlags.gpuDirectRDMACapable = 1,
};
static const CUmemAccessDesc reachable = {
	.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
	.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
};

static inline CUdeviceptr reserve(size_t size)
{
	CUdeviceptr address;

	assert_int_equal(driver.cuMemAddressReserve(&address, size, 0, 0, 0),
			 CUDA_SUCCESS);
	return address;
}

static inline CUmemGenericAllocationHandle create(size_t size,
						  const CUmemAllocationProp *how)
{
	CUmemGenericAllocationHandle handle;

	assert_int_equal(driver.cuMemCreate(&handle, size, how, 0), CUDA_SUCCESS);
	return handle;
}

/* Mapped, accessible, and with no handle left. */
static inline void map_new(CUdeviceptr address, size_t size,
			   const CUmemAllocationProp *how)
{
	CUmemGenericAllocationHandle handle = create(size, how);

	assert_int_equal(driver.cuMemMap(address, size, 0, handle, 0), CUDA_SUCCESS);
	assert_int_equal(driver.cuMemSetAccess(address, size, &reachable, 1),
			 CUDA_SUCCESS);
	assert_int_equal(driver.cuMemRelease(handle), CUDA_SUCCESS);
}

static inline void unmap(CUdeviceptr address, size_t size)
{
	assert_int_equal(driver.cuMemUnmap(address, size), CUDA_SUCCESS);
}

static inline void give_back(CUdeviceptr address, size_t size)
{
	assert_int_equal(driver.cuMemAddressFree(address, size), CUDA_SUCCESS);
}

#endif
