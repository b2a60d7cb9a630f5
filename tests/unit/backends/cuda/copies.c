/* SPDX-License-Identifier: BSD-3-Clause */
/* Copies started in a stream, while the device holds them back. */
#include "cuda_fixture.h"

enum {
	LENGTH = 4096,
};

/* Page-locked, so that the device accesses it when the copy runs. */
static char *lock_page(const struct pier_memory *memory)
{
	char *page = aligned_alloc(LENGTH, LENGTH);

	assert_non_null(page);
	memset(page, '.', LENGTH);
	expect_ok(cuda->lock_host(memory, page, LENGTH));
	return page;
}

static void unlock_page(const struct pier_memory *memory, char *page)
{
	cuda->unlock_host(memory, page);
	free(page);
}

static int start_copy(const struct pier_memory *memory, void *host, bool to_host,
		      void *stream, void **ret_copy)
{
	struct pier_backend_copy copy = {
		.size = sizeof(copy),
		.offset = 3,
		.length = 10,
		.host = host,
		.to_host = to_host,
		.stream = stream,
	};

	return cuda->copy_start(memory, &copy, ret_copy);
}

static void expect_device(const struct pier_memory *memory, char first, char last)
{
	char bytes[10];

	assert_int_equal(app.control->read(memory->address + 3, bytes, 10), 0);
	assert_int_equal(bytes[0], first);
	assert_int_equal(bytes[9], last);
}

/* In pier's stream or the caller's, of the primary context or another one. */
static void check_order(const struct pier_memory *memory, CUstream stream)
{
	char *page = lock_page(memory);
	void *in = NULL, *out = NULL;
	char zero = 0;

	app.control->stalled = true;
	memset(page, 'a', 10);
	expect_ok(start_copy(memory, page, false, stream, &in));
	expect_result(cuda->copy_query(in), 0);
	expect_device(memory, zero, zero);
	expect_ok(start_copy(memory, page + 100, true, stream, &out));
	expect_result(cuda->copy_query(out), 0);
	/* The device has not released the memory yet. */
	page[0] = 'b';
	assert_int_equal(page[100], '.');
	app.control->stalled = false;
	expect_result(cuda->copy_query(in), 1);
	expect_device(memory, 'b', 'a');
	expect_result(cuda->copy_query(out), 1);
	assert_memory_equal(page + 99, ".baaaaaaaaa.", 12);
	unlock_page(memory, page);
}

static void copies_keep_the_order_of_a_stream(void **state)
{
	static const char *const units[] = { "0", "1:vmm:2M" };
	CUstream stream = NULL;

	(void)state;
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		struct pier_memory memory;

		expect_ok(cuda->alloc(units[i], FIXTURE_MIB, &memory));
		check_order(&memory, NULL);
		cuda->free(&memory);
	}
	for (size_t i = 0; i < 2; i++) {
		CUcontext context = fixture_context(1), popped;
		struct pier_memory memory;
		uint64_t address;

		if (i == 1)
			assert_int_equal(app.cuStreamCreate(&stream, 0), CUDA_SUCCESS);
		address = fixture_alloc(context, 4 * FIXTURE_MIB);
		assert_int_equal(app.cuMemsetD8_v2(address, 0, LENGTH), CUDA_SUCCESS);
		assert_int_equal(app.cuCtxPopCurrent_v2(&popped), CUDA_SUCCESS);
		expect_ok(call_find(cuda, address, 1, &memory));
		check_order(&memory, stream);
		cuda->release(&memory);
		fixture_free(context, address);
		if (stream)
			assert_int_equal(app.cuStreamDestroy_v2(stream), CUDA_SUCCESS);
		fixture_destroy(context);
	}
}

/* A kernel of the application polls, possibly for these very bytes. */
static void start_does_not_wait_for_kernels(void **state)
{
	struct pier_memory memory;
	void *copy = NULL;
	char byte[10] = "x";

	(void)state;
	expect_ok(cuda->alloc("0", 1, &memory));
	app.control->kernel_polls = true;
	expect_ok(start_copy(&memory, byte, false, NULL, &copy));
	expect_result(cuda->copy_query(copy), 1);
	app.control->kernel_polls = false;
	assert_int_equal(app.control->hangs, 0);
	app.control->capturing = true;
	expect_ok(start_copy(&memory, byte, true, NULL, &copy));
	expect_result(cuda->copy_query(copy), 1);
	app.control->capturing = false;
	assert_int_equal(app.control->breaks, 0);
	cuda->free(&memory);
}

/* "API synchronization behavior": from and to memory that is not page-locked. */
static void pageable_memory_is_free_after_start(void **state)
{
	struct pier_memory memory;
	void *in = NULL, *out = NULL;
	char bytes[10], back[10];

	(void)state;
	expect_ok(cuda->alloc("0", 1, &memory));
	app.control->stalled = true;
	memset(bytes, 'a', sizeof(bytes));
	expect_ok(start_copy(&memory, bytes, false, NULL, &in));
	memset(bytes, 'b', sizeof(bytes));
	expect_ok(start_copy(&memory, back, true, NULL, &out));
	assert_memory_equal(back, "aaaaaaaaaa", 10);
	expect_result(cuda->copy_query(out), 1);
	expect_result(cuda->copy_query(in), 1);
	expect_device(&memory, 'a', 'a');
	cuda->free(&memory);
}

/* The CPU copies it, after the work of the stream. */
static void mapped_memory_waits_for_the_stream(void **state)
{
	struct fake_cuda_call *waits = fake_cuda_call(app.control, "cuStreamSynchronize");
	uint64_t waited;
	CUcontext primary, popped;
	struct pier_memory memory;
	CUstream stream = NULL;
	void *copy = NULL;
	char bytes[10] = "x", back[10] = "";

	(void)state;
	assert_int_equal(app.cuDevicePrimaryCtxRetain(&primary, 0), CUDA_SUCCESS);
	assert_int_equal(app.cuCtxPushCurrent_v2(primary), CUDA_SUCCESS);
	assert_int_equal(app.cuStreamCreate(&stream, 0), CUDA_SUCCESS);
	assert_int_equal(app.cuCtxPopCurrent_v2(&popped), CUDA_SUCCESS);
	expect_ok(cuda->alloc("0:host", 1, &memory));
	waited = waits->calls;
	expect_ok(start_copy(&memory, bytes, false, NULL, &copy));
	assert_int_equal(waits->calls, waited);
	expect_ok(start_copy(&memory, back, true, stream, &copy));
	assert_int_equal(waits->calls, waited + 1);
	assert_string_equal(back, "x");
	fixture_fail("cuStreamSynchronize", CUDA_ERROR_ILLEGAL_ADDRESS);
	expect_result(start_copy(&memory, bytes, false, stream, &copy), -EIO);
	test_assert_sentence("waiting for a stream of CUDA device 0");
	fixture_fail("cuCtxPushCurrent", CUDA_ERROR_INVALID_CONTEXT);
	expect_result(start_copy(&memory, bytes, false, stream, &copy), -EINVAL);
	assert_null(copy);
	cuda->free(&memory);
	assert_int_equal(app.cuStreamDestroy_v2(stream), CUDA_SUCCESS);
	assert_int_equal(app.cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
}

/* The fixture counts events and streams left behind. */
static void failed_start_leaves_nothing(void **state)
{
	static const char *const calls[] = { "cuCtxPushCurrent", "cuEventCreate",
					     "cuMemcpyDtoHAsync", "cuEventRecord" };
	struct pier_memory memory;
	char *page;

	(void)state;
	expect_ok(cuda->alloc("0", 1, &memory));
	page = lock_page(&memory);
	app.control->stalled = true;
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		void *copy = NULL;

		fixture_fail(calls[i], CUDA_ERROR_OUT_OF_MEMORY);
		expect_result(start_copy(&memory, page, true, NULL, &copy), -ENOMEM);
		test_assert_sentence("CUDA_ERROR_OUT_OF_MEMORY");
		assert_null(copy);
		/* Copies that were queued have run, and do not run again. */
		memset(page, '.', LENGTH);
		app.control->stalled = false;
		assert_int_equal(app.control->write(memory.address, "xxxxx", 5), 0);
		expect_ok(cuda->copy_from(&memory, 0, page + 50, 1));
		app.control->stalled = true;
		assert_int_equal(page[0], '.');
	}
	unlock_page(&memory, page);
	cuda->free(&memory);
}

static void failed_query_ends_the_copy(void **state)
{
	struct pier_memory memory;
	void *copy = NULL;
	char *page;

	(void)state;
	expect_ok(cuda->alloc("1", 1, &memory));
	page = lock_page(&memory);
	app.control->stalled = true;
	expect_ok(start_copy(&memory, page, true, NULL, &copy));
	fixture_fail("cuEventQuery", CUDA_ERROR_UNKNOWN);
	expect_result(cuda->copy_query(copy), -EIO);
	test_assert_sentence("copying 10 bytes from");
	/* The memory is the caller's again. */
	memset(page, '.', LENGTH);
	app.control->stalled = false;
	expect_ok(cuda->copy_from(&memory, 0, page + 50, 1));
	assert_int_equal(page[0], '.');
	unlock_page(&memory, page);
	cuda->free(&memory);
}

static void lost_device_ends_the_copy(void **state)
{
	struct pier_memory memory;
	void *copy = NULL;
	char *page;

	(void)state;
	expect_ok(cuda->alloc("1", 1, &memory));
	page = lock_page(&memory);
	app.control->stalled = true;
	expect_ok(start_copy(&memory, page, true, NULL, &copy));
	app.control->device[1].lost_in = 1;
	app.control->device[1].lost_result = CUDA_ERROR_ECC_UNCORRECTABLE;
	expect_result(cuda->copy_query(copy), -EIO);
	test_assert_sentence("CUDA_ERROR_ECC_UNCORRECTABLE");
	app.control->device[1].lost_in = 0;
	app.control->stalled = false;
	assert_int_equal(page[0], '.');
	unlock_page(&memory, page);
	cuda->free(&memory);
}

static void freed_memory_is_refused(void **state)
{
	CUcontext context = fixture_context(0);
	struct pier_memory memory;
	void *copy = NULL;
	uint64_t address;
	char bytes[10];

	(void)state;
	address = fixture_alloc(context, 4 * FIXTURE_MIB);
	expect_ok(call_find(cuda, address, 1, &memory));
	fixture_free(context, address);
	expect_result(start_copy(&memory, bytes, true, NULL, &copy), -EINVAL);
	test_assert_sentence("was freed after it was wrapped");
	cuda->release(&memory);
	fixture_destroy(context);
}

/* As a program calls it. */
static void copies_buffers(void **state)
{
	struct pier_buffer *buffer = NULL;
	struct pier_copy *copy = NULL;
	char back[6] = "";

	(void)state;
	expect_ok(pier_buffer_alloc("cuda:0", LENGTH, &buffer));
	app.control->stalled = true;
	expect_ok(pier_buffer_copy_start_to(buffer, 7, "bytes", 6, NULL, &copy));
	expect_result(pier_copy_wait(copy, 0), 0);
	expect_result(pier_copy_free(copy), -EBUSY);
	expect_result(pier_buffer_free(buffer), -EBUSY);
	app.control->stalled = false;
	expect_result(pier_copy_wait(copy, PIER_TIMEOUT_DEFAULT), 1);
	expect_ok(pier_copy_free(copy));
	expect_ok(pier_buffer_copy_start_from(buffer, 7, back, 6, NULL, &copy));
	expect_result(pier_copy_wait(copy, PIER_TIMEOUT_DEFAULT), 1);
	expect_ok(pier_copy_free(copy));
	assert_string_equal(back, "bytes");
	expect_ok(pier_buffer_free(buffer));
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
	const struct CMUnitTest tests[] = {
		CASE(copies_keep_the_order_of_a_stream),
		CASE(start_does_not_wait_for_kernels),
		CASE(pageable_memory_is_free_after_start),
		CASE(mapped_memory_waits_for_the_stream),
		CASE(failed_start_leaves_nothing),
		CASE(failed_query_ends_the_copy),
		CASE(lost_device_ends_the_copy),
		CASE(freed_memory_is_refused),
		CASE(copies_buffers),
	};

	return cmocka_run_group_tests(tests, fixture_begin, NULL);
}
