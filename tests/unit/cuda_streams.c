/* SPDX-License-Identifier: BSD-3-Clause */
/* What pier asks of a device beside the application's own work on it. */
#include "cuda_rig.h"

/* While a kernel of the application polls, for these bytes or for others. */
static void check_beside_kernel(const struct pier_memory *memory)
{
	char in[] = "for the kernel", out[sizeof(in)] = "";
	uint64_t streams = app.control->live[FAKE_CUDA_STREAM];

	app.control->kernel_polls = true;
	expect_ok(cuda->copy_to(memory, 3, in, sizeof(in)));
	expect_ok(cuda->copy_from(memory, 3, out, sizeof(out)));
	app.control->kernel_polls = false;
	assert_string_equal(in, out);
	assert_int_equal(app.control->live[FAKE_CUDA_STREAM], streams);
}

static void test_beside_kernel(void **state)
{
	static const char *const units[] = { "0", "1", "1:vmm:2M" };
	struct pier_memory memory;

	(void)state;
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		app.control->kernel_polls = true;
		expect_ok(cuda->alloc(units[i], RIG_MIB, &memory));
		check_beside_kernel(&memory);
		cuda->free(&memory);
	}
	assert_int_equal(app.control->hangs, 0);
}

/* A context of the application's has a stream for as long as the copy takes. */
static void test_own_context(void **state)
{
	CUcontext context = rig_context(1), popped;
	struct fake_cuda_call *made = fake_cuda_call(app.control, "cuStreamCreate");
	uint64_t address;
	struct pier_memory memory;
	char byte = 1;

	(void)state;
	assert_int_equal(app.cuCtxPopCurrent_v2(&popped), CUDA_SUCCESS);
	address = rig_alloc(context, 4 * RIG_MIB);
	expect_ok(cuda->find(address, &memory));
	check_beside_kernel(&memory);
	assert_int_equal(made->calls, 2);
	rig_fail("cuStreamCreate", CUDA_ERROR_OUT_OF_MEMORY);
	expect_result(cuda->copy_to(&memory, 0, &byte, 1), -ENOMEM);
	test_assert_sentence("cuStreamCreate");
	rig_fail("cuMemcpyDtoHAsync", CUDA_ERROR_ILLEGAL_ADDRESS);
	expect_result(cuda->copy_from(&memory, 0, &byte, 1), -EIO);
	cuda->release(&memory);
	rig_free(context, address);
	rig_destroy(context);
}

/* The runtime's is the primary one, in which pier has a stream already. */
static void test_primary(void **state)
{
	struct fake_cuda_call *made = fake_cuda_call(app.control, "cuStreamCreate");
	struct pier_memory memory;
	CUcontext primary;
	uint64_t address;

	(void)state;
	assert_int_equal(app.cuDevicePrimaryCtxRetain(&primary, 0), CUDA_SUCCESS);
	address = rig_alloc(primary, 4 * RIG_MIB);
	expect_ok(cuda->find(address, &memory));
	check_beside_kernel(&memory);
	assert_int_equal(made->calls, 0);
	cuda->release(&memory);
	rig_free(primary, address);
	assert_int_equal(app.cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)
	const struct CMUnitTest tests[] = {
		CASE(test_beside_kernel),
		CASE(test_own_context),
		CASE(test_primary),
	};

	return cmocka_run_group_tests(tests, rig_begin, NULL);
}
