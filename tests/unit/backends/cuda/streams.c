/* SPDX-License-Identifier: BSD-3-Clause */
/* The calls that pier makes to a device while the application uses it. */
#include "cuda_fixture.h"

/* While a kernel of the application polls for these or other bytes. */
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

static void does_not_wait_for_a_kernel(void **state)
{
	static const char *const units[] = { "0", "1", "1:vmm:2M" };
	struct pier_memory memory;

	(void)state;
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		app.control->kernel_polls = true;
		expect_ok(cuda->alloc(units[i], FIXTURE_MIB, &memory));
		check_beside_kernel(&memory);
		cuda->free(&memory);
	}
	assert_int_equal(app.control->hangs, 0);
}

/* An application's context has a stream of pier's only during a copy. */
static void removes_its_stream_after_the_copy(void **state)
{
	CUcontext context = fixture_context(1), popped;
	struct fake_cuda_call *made = fake_cuda_call(app.control, "cuStreamCreate");
	uint64_t address;
	struct pier_memory memory;
	char byte = 1;

	(void)state;
	assert_int_equal(app.cuCtxPopCurrent_v2(&popped), CUDA_SUCCESS);
	address = fixture_alloc(context, 4 * FIXTURE_MIB);
	expect_ok(call_find(cuda, address, 1, &memory));
	check_beside_kernel(&memory);
	assert_int_equal(made->calls, 2);
	fixture_fail("cuStreamCreate", CUDA_ERROR_OUT_OF_MEMORY);
	expect_result(cuda->copy_to(&memory, 0, &byte, 1), -ENOMEM);
	test_assert_sentence("cuStreamCreate");
	fixture_fail("cuMemcpyDtoHAsync", CUDA_ERROR_ILLEGAL_ADDRESS);
	expect_result(cuda->copy_from(&memory, 0, &byte, 1), -EIO);
	cuda->release(&memory);
	fixture_free(context, address);
	fixture_destroy(context);
}

/* The runtime uses the primary context, in which pier keeps a stream. */
static void keeps_its_stream_in_the_primary_context(void **state)
{
	struct fake_cuda_call *made = fake_cuda_call(app.control, "cuStreamCreate");
	struct pier_memory memory;
	CUcontext primary;
	uint64_t address;

	(void)state;
	assert_int_equal(app.cuDevicePrimaryCtxRetain(&primary, 0), CUDA_SUCCESS);
	address = fixture_alloc(primary, 4 * FIXTURE_MIB);
	expect_ok(call_find(cuda, address, 1, &memory));
	check_beside_kernel(&memory);
	assert_int_equal(made->calls, 0);
	cuda->release(&memory);
	fixture_free(primary, address);
	assert_int_equal(app.cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
}

/* Everything that pier does, while another thread captures. */
static void check_beside_capture(const char *unit)
{
	struct pier_backend_export dmabuf = { .fd = -1 };
	struct pier_memory memory, found;
	uint64_t start, length, page = pier_host_page();
	char bytes[16] = "", *plain = aligned_alloc(page, page);

	assert_non_null(plain);
	app.control->capturing = true;
	expect_ok(cuda->alloc(unit, 1, &memory));
	expect_ok(cuda->copy_to(&memory, 0, bytes, sizeof(bytes)));
	expect_ok(cuda->copy_from(&memory, 0, bytes, sizeof(bytes)));
	expect_ok(call_export(cuda, &memory, memory.address, memory.length,
			      PIER_MAPPING_DEFAULT, &dmabuf));
	cuda->close_export(&dmabuf);
	expect_ok(cuda->expose(&memory));
	expect_ok(cuda->segment(&memory, memory.address, &start, &length));
	expect_ok(call_flush(cuda, &memory));
	expect_ok(cuda->lock_host(&memory, plain, page));
	cuda->unlock_host(&memory, plain);
	cuda->free(&memory);
	app.control->capturing = false;
	start = fixture_map(0, FIXTURE_BLOCK, 1, true).address;
	app.control->capturing = true;
	expect_ok(call_find(cuda, start, 1, &found));
	cuda->release(&found);
	app.control->capturing = false;
	fixture_unmap(&(struct fixture_vmm){ start, FIXTURE_BLOCK, FIXTURE_BLOCK });
	free(plain);
}

static CUstreamCaptureMode exchange(CUstreamCaptureMode mode)
{
	assert_int_equal(app.cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
	return mode;
}

static void does_not_end_a_capture(void **state)
{
	static const char *const units[] = { "0", "1:vmm", "0:host" };

	(void)state;
	app.control->device[0].ordering = app.control->device[1].ordering = 0;
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
		check_beside_capture(units[i]);
	assert_int_equal(app.control->breaks, 0);
}

/* The thread's mode is restored, also after a failure. */
static void restores_the_capture_mode(void **state)
{
	struct pier_memory memory, other;
	char byte = 1;

	(void)state;
	for (CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
	     mode <= CU_STREAM_CAPTURE_MODE_RELAXED; mode++) {
		exchange(mode);
		expect_ok(cuda->alloc("1", 1, &memory));
		assert_int_equal(exchange(mode), mode);
		fixture_fail("cuCtxPushCurrent", CUDA_ERROR_INVALID_CONTEXT);
		expect_result(cuda->copy_to(&memory, 0, &byte, 1), -EINVAL);
		assert_int_equal(exchange(mode), mode);
		fixture_fail("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY);
		expect_result(cuda->alloc("0", 1, &other), -ENOMEM);
		assert_int_equal(exchange(mode), mode);
		/* If the mode cannot be changed, it is not restored either. */
		fixture_fail("cuThreadExchangeStreamCaptureMode", CUDA_ERROR_UNKNOWN);
		expect_ok(cuda->copy_to(&memory, 0, &byte, 1));
		assert_int_equal(exchange(mode), mode);
		cuda->free(&memory);
		assert_int_equal(exchange(CU_STREAM_CAPTURE_MODE_GLOBAL), mode);
	}
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
	const struct CMUnitTest tests[] = {
		CASE(does_not_wait_for_a_kernel),
		CASE(removes_its_stream_after_the_copy),
		CASE(keeps_its_stream_in_the_primary_context),
		CASE(does_not_end_a_capture),
		CASE(restores_the_capture_mode),
	};

	return cmocka_run_group_tests(tests, fixture_begin, NULL);
}
