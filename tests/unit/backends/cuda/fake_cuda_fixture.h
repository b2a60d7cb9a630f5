/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_UNIT_FAKE_CUDA_FIXTURE_H
#define TESTS_UNIT_FAKE_CUDA_FIXTURE_H

#include "tests/support/cmocka.h"
#include "tests/support/census.h"

#include "cuda/calls.h"

#define MIB (1ull << 20)

static struct fake_cuda_calls driver;
static struct fake_cuda *fake;
static CUcontext context;
static struct test_census before;

static inline void load_driver(void)
{
	if (!fake_cuda_load(&driver))
		fail_msg("no fake libcuda.so.1 in LD_LIBRARY_PATH");
	fake = driver.control;
}

/* Each test starts with the context of device 0 current, and must leave nothing else. */
static inline int begin(void **state)
{
	(void)state;
	load_driver();
	fake->restore();
	before = test_take_census();
	assert_int_equal(driver.cuInit(0), CUDA_SUCCESS);
	assert_int_equal(driver.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
	assert_int_equal(driver.cuCtxPushCurrent_v2(context), CUDA_SUCCESS);
	fake->udmabuf = false;
	return 0;
}

static inline int end(void **state)
{
	(void)state;
	fake->restore();
	assert_int_equal(driver.cuCtxPopCurrent_v2(NULL), CUDA_SUCCESS);
	assert_int_equal(driver.cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
	assert_int_equal(fake->current, 0);
	for (int kind = 0; kind < FAKE_CUDA_KINDS; kind++)
		assert_int_equal(fake->live[kind], 0);
	for (int i = 0; i < FAKE_CUDA_MAX_DEVICES; i++) {
		assert_int_equal(fake->device[i].memory_used, 0);
		assert_int_equal(fake->device[i].bar_used, 0);
	}
	test_assert_census(&before);
	dlclose(driver.library);
	return 0;
}

#define fixture_test(name) cmocka_unit_test_setup_teardown(name, begin, end)

static inline CUdeviceptr allocate(size_t size)
{
	CUdeviceptr address;

	assert_int_equal(driver.cuMemAlloc_v2(&address, size), CUDA_SUCCESS);
	return address;
}

static inline void release(CUdeviceptr address)
{
	assert_int_equal(driver.cuMemFree_v2(address), CUDA_SUCCESS);
}

#endif
