/* SPDX-License-Identifier: BSD-3-Clause */
/* The application calls cudaDeviceReset() while pier has a context and a stream. */
#include "cuda_fixture.h"

static void reset(int device)
{
	assert_int_equal(app.cuDevicePrimaryCtxReset_v2(device), CUDA_SUCCESS);
}

static void assert_works(const char *unit)
{
	struct pier_backend_export dmabuf = { .fd = -1 };
	char in[] = "after", out[sizeof(in)] = "";
	struct pier_memory memory;

	expect_ok(cuda->alloc(unit, 1, &memory));
	expect_ok(cuda->copy_to(&memory, 3, in, sizeof(in)));
	expect_ok(cuda->copy_from(&memory, 3, out, sizeof(out)));
	assert_string_equal(in, out);
	expect_ok(call_export(cuda, &memory, memory.address, memory.length,
			      PIER_MAPPING_DEFAULT, &dmabuf));
	cuda->close_export(&dmabuf);
	cuda->free(&memory);
}

static void makes_a_new_context(void **state)
{
	unsigned int flags = 0;
	int active = 0;

	(void)state;
	reset(0);
	reset(1);
	assert_works("0");
	assert_works("1:vmm:2M");
	assert_int_equal(app.cuDevicePrimaryCtxGetState(0, &flags, &active),
			 CUDA_SUCCESS);
	assert_int_equal(flags, CU_CTX_SYNC_MEMOPS);
	assert_int_equal(app.control->device[0].primary_users, 1);
	assert_int_equal(app.control->device[1].primary_users, 1);
}

/* The runtime has a new context already, at the address of the old one. */
static void notices_a_reset_by_the_context_id(void **state)
{
	CUcontext primary;
	unsigned int flags;
	int active;

	(void)state;
	reset(0);
	assert_int_equal(app.cuDevicePrimaryCtxRetain(&primary, 0), CUDA_SUCCESS);
	assert_works("0");
	assert_int_equal(app.cuDevicePrimaryCtxGetState(0, &flags, &active),
			 CUDA_SUCCESS);
	assert_int_equal(flags, CU_CTX_SYNC_MEMOPS);
	assert_int_equal(app.cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
	assert_int_equal(app.control->device[0].primary_users, 1);
}

/* The application's memory of the new context is recognised as the primary one's. */
static void wraps_memory_of_the_new_context(void **state)
{
	struct pier_memory memory;
	CUcontext primary;
	uint64_t address;
	char byte = 1;

	(void)state;
	reset(0);
	assert_int_equal(app.cuDevicePrimaryCtxRetain(&primary, 0), CUDA_SUCCESS);
	address = fixture_alloc(primary, 4 * FIXTURE_MIB);
	expect_ok(call_find(cuda, address, 1, &memory));
	expect_ok(cuda->copy_to(&memory, 0, &byte, 1));
	cuda->release(&memory);
	fixture_free(primary, address);
	assert_int_equal(app.cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
}

/* pier's own memory went with the context: its address may be another's. */
static void does_not_free_what_replaced_its_memory(void **state)
{
	uint64_t live = app.control->live[FAKE_CUDA_DEVICE_MEMORY];
	struct pier_backend_export dmabuf = { .fd = -1 };
	struct pier_memory memory;
	CUcontext primary;
	uint64_t address;
	char byte = 1;

	(void)state;
	expect_ok(cuda->alloc("0", 2 * FIXTURE_MIB, &memory));
	reset(0);
	assert_int_equal(app.cuDevicePrimaryCtxRetain(&primary, 0), CUDA_SUCCESS);
	address = fixture_alloc(primary, 2 * FIXTURE_MIB);
	assert_int_equal(address, memory.address);
	expect_result(cuda->copy_to(&memory, 0, &byte, 1), -EINVAL);
	test_assert_sentence("cudaDeviceReset()");
	expect_result(call_export(cuda, &memory, memory.address, memory.length,
				  PIER_MAPPING_DEFAULT, &dmabuf),
		      -EINVAL);
	cuda->free(&memory);
	assert_int_equal(app.control->live[FAKE_CUDA_DEVICE_MEMORY], live + 1);
	fixture_free(primary, address);
	assert_works("0");
	assert_int_equal(app.cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
	const struct CMUnitTest tests[] = {
		CASE(makes_a_new_context),
		CASE(notices_a_reset_by_the_context_id),
		CASE(wraps_memory_of_the_new_context),
		CASE(does_not_free_what_replaced_its_memory),
	};

	return cmocka_run_group_tests(tests, fixture_begin, NULL);
}
