/* SPDX-License-Identifier: BSD-3-Clause */
/* Copies that are started in a stream, while the device holds them back. */
#include "hip_fixture.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <pier/pier.h>

static const struct pier_backend *const backend = &pier_hip_backend;

enum {
	LENGTH = 4096,
	SEGMENT = 2 << 20,
};

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

	return backend->copy_start(memory, &copy, ret_copy);
}

static struct ihipStream_t *make_stream(void)
{
	struct ihipStream_t *stream = NULL;

	assert_int_equal(fixture.hipStreamCreateWithFlags(&stream, 1), 0);
	return stream;
}

static void check_order(void *stream)
{
	char bytes[11] = "aaaaaaaaaa", back[12] = "...........";
	void *in = NULL, *out = NULL;
	struct pier_memory memory;

	expect_ok(backend->alloc("0", LENGTH, &memory));
	expect_ok(start_copy(&memory, bytes, false, stream, &in));
	expect_result(backend->copy_query(in), 0);
	expect_ok(start_copy(&memory, back, true, stream, &out));
	expect_result(backend->copy_query(out), 0);
	/* The memory is still the device's. */
	bytes[0] = 'b';
	assert_string_equal(back, "...........");
	fixture.catch_up();
	expect_result(backend->copy_query(in), 1);
	expect_result(backend->copy_query(out), 1);
	assert_string_equal(back, "baaaaaaaaa.");
	backend->free(&memory);
}

static void copies_keep_the_order_of_a_stream(void **state)
{
	struct ihipStream_t *stream;

	(void)state;
	check_order(NULL);
	stream = make_stream();
	check_order(stream);
	assert_int_equal(fixture.hipStreamDestroy(stream), 0);
}

/* Wrapped, over a border of hipMemMap(). */
static void segments_are_one_copy(void **state)
{
	char *address = fixture_map(0, SEGMENT, 2, 2);
	struct pier_backend_copy copy = {
		.size = sizeof(copy),
		.offset = SEGMENT - 5,
		.length = 10,
	};
	char bytes[10], back[12];
	struct pier_memory memory;
	void *started = NULL;

	(void)state;
	expect_ok(call_find(backend, (uint64_t)(uintptr_t)address, 2 * SEGMENT, &memory));
	memcpy(bytes, "0123456789", 10);
	memset(back, '.', sizeof(back));
	copy.host = bytes;
	expect_ok(backend->copy_start(&memory, &copy, &started));
	expect_result(backend->copy_query(started), 0);
	fixture.catch_up();
	expect_result(backend->copy_query(started), 1);
	copy.host = back + 1;
	copy.to_host = true;
	expect_ok(backend->copy_start(&memory, &copy, &started));
	fixture.catch_up();
	expect_result(backend->copy_query(started), 1);
	assert_memory_equal(back, ".0123456789.", 12);
	fixture_fail("hipMemcpyAsync", 2);
	expect_result(backend->copy_start(&memory, &copy, &started), -ENOMEM);
	backend->release(&memory);
	fixture_unmap(address, SEGMENT, 2, 2);
}

static void start_does_not_wait_for_kernels(void **state)
{
	struct pier_memory memory;
	void *copy = NULL;
	char bytes[10] = "x";

	(void)state;
	expect_ok(backend->alloc("1", LENGTH, &memory));
	fixture.fake->kernel_polls = true;
	fixture.fake->capturing = true;
	expect_ok(start_copy(&memory, bytes, false, NULL, &copy));
	expect_result(backend->copy_query(copy), 0);
	fixture.catch_up();
	expect_result(backend->copy_query(copy), 1);
	fixture.fake->capturing = false;
	assert_int_equal(fixture.fake->hangs, 0);
	assert_int_equal(fixture.fake->breaks, 0);
	backend->free(&memory);
}

/* hipDeviceReset() took pier's stream. */
static void lost_stream_is_made_again(void **state)
{
	struct pier_memory memory;
	void *copy = NULL;
	char bytes[10] = "x";

	(void)state;
	expect_ok(backend->alloc("0", LENGTH, &memory));
	expect_ok(start_copy(&memory, bytes, false, NULL, &copy));
	fixture.catch_up();
	expect_result(backend->copy_query(copy), 1);
	fixture.reset(0);
	expect_ok(start_copy(&memory, bytes, false, NULL, &copy));
	fixture.catch_up();
	expect_result(backend->copy_query(copy), 1);
	backend->free(&memory);
}

/* The caller's stream is not tried again. */
static void destroyed_stream_is_refused(void **state)
{
	struct ihipStream_t *stream = make_stream();
	struct pier_memory memory;
	void *copy = NULL;
	char bytes[10] = "x";

	(void)state;
	expect_ok(backend->alloc("0", LENGTH, &memory));
	assert_int_equal(fixture.hipStreamDestroy(stream), 0);
	expect_result(start_copy(&memory, bytes, false, stream, &copy), -EIO);
	test_assert_sentence("(709)");
	assert_null(copy);
	backend->free(&memory);
}

/* The CPU copies it, after the work of the stream. */
static void mapped_memory_waits_for_the_stream(void **state)
{
	struct ihipStream_t *stream = make_stream();
	struct pier_memory memory, host;
	void *before = NULL, *copy = NULL;
	char bytes[10] = "x", back[10] = "";

	(void)state;
	expect_ok(backend->alloc("0", LENGTH, &memory));
	expect_ok(backend->alloc("0:host", LENGTH, &host));
	expect_ok(start_copy(&memory, bytes, false, stream, &before));
	expect_ok(start_copy(&host, bytes, false, NULL, &copy));
	expect_result(backend->copy_query(before), 0);
	expect_ok(start_copy(&host, back, true, stream, &copy));
	assert_string_equal(back, "x");
	expect_result(backend->copy_query(before), 1);
	fixture_fail("hipStreamSynchronize", 719);
	expect_result(start_copy(&host, bytes, false, stream, &copy), -EIO);
	test_assert_sentence("waiting for a stream of device 0");
	assert_null(copy);
	backend->free(&host);
	backend->free(&memory);
	assert_int_equal(fixture.hipStreamDestroy(stream), 0);
}

/* The fixture counts events that are left. */
static void failed_start_leaves_nothing(void **state)
{
	static const char *const calls[] = { "hipSetDevice", "hipEventCreateWithFlags",
					     "hipMemcpyAsync", "hipEventRecord" };
	struct pier_memory memory;
	char back[11] = "..........";

	(void)state;
	expect_ok(backend->alloc("1", LENGTH, &memory));
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		void *copy = NULL;

		fixture_fail(calls[i], 2);
		expect_result(start_copy(&memory, back, true, NULL, &copy), -ENOMEM);
		assert_null(copy);
		/* What was queued has been made, and comes no more. */
		memset(back, '.', 10);
		fixture.catch_up();
		assert_string_equal(back, "..........");
	}
	backend->free(&memory);
}

static void failed_query_ends_the_copy(void **state)
{
	struct pier_memory memory;
	void *copy = NULL;
	char back[11] = "..........";

	(void)state;
	expect_ok(backend->alloc("0", LENGTH, &memory));
	expect_ok(start_copy(&memory, back, true, NULL, &copy));
	fixture_fail("hipEventQuery", 719);
	expect_result(backend->copy_query(copy), -EIO);
	test_assert_sentence("copying 10 bytes from device 0");
	memset(back, '.', 10);
	fixture.catch_up();
	assert_string_equal(back, "..........");
	backend->free(&memory);
}

static void lost_device_ends_the_copy(void **state)
{
	struct pier_memory memory;
	void *copy = NULL;
	char back[11] = "..........";

	(void)state;
	expect_ok(backend->alloc("0", LENGTH, &memory));
	expect_ok(start_copy(&memory, back, true, NULL, &copy));
	fixture.fake->lost_error = 719;
	fixture.fake->lost_call = 2;
	expect_result(backend->copy_query(copy), -EIO);
	fixture.fake->lost_call = 0;
	fixture.catch_up();
	assert_string_equal(back, "..........");
	fixture.hipSetDevice(0);
	fixture.hipGetLastError();
	backend->free(&memory);
}

static void freed_memory_is_refused(void **state)
{
	void *pointer = NULL, *copy = NULL;
	struct pier_memory memory;
	char bytes[10] = "x";

	(void)state;
	assert_int_equal(fixture.hipMalloc(&pointer, LENGTH), 0);
	expect_ok(call_find(backend, (uint64_t)(uintptr_t)pointer, UINT64_MAX, &memory));
	assert_int_equal(fixture.hipFree(pointer), 0);
	expect_result(start_copy(&memory, bytes, false, NULL, &copy), -EFAULT);
	test_assert_sentence("was freed after it was wrapped");
	backend->release(&memory);
}

/* As a program does it. */
static void buffers_are_copied(void **state)
{
	struct pier_buffer *buffer = NULL;
	struct pier_copy *copy = NULL;
	char back[6] = "";

	(void)state;
	expect_ok(pier_buffer_alloc("hip:0", LENGTH, &buffer));
	expect_ok(pier_buffer_copy_start_to(buffer, 7, "bytes", 6, NULL, &copy));
	expect_result(pier_copy_wait(copy, 0), 0);
	expect_result(pier_copy_free(copy), -EBUSY);
	expect_result(pier_buffer_free(buffer), -EBUSY);
	fixture.catch_up();
	expect_result(pier_copy_wait(copy, PIER_TIMEOUT_DEFAULT), 1);
	expect_ok(pier_copy_free(copy));
	expect_ok(pier_buffer_copy_start_from(buffer, 7, back, 6, NULL, &copy));
	fixture.catch_up();
	expect_result(pier_copy_wait(copy, PIER_TIMEOUT_DEFAULT), 1);
	expect_ok(pier_copy_free(copy));
	assert_string_equal(back, "bytes");
	expect_ok(pier_buffer_free(buffer));
}

static int before_test(void **state)
{
	int error = fixture_before(state);

	fixture.fake->stalled = true;
	return error;
}

static int after_test(void **state)
{
	fixture.fake->stalled = false;
	return fixture_after(state);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, before_test, after_test)
	const struct CMUnitTest tests[] = {
		CASE(copies_keep_the_order_of_a_stream),
		CASE(segments_are_one_copy),
		CASE(start_does_not_wait_for_kernels),
		CASE(lost_stream_is_made_again),
		CASE(destroyed_stream_is_refused),
		CASE(mapped_memory_waits_for_the_stream),
		CASE(failed_start_leaves_nothing),
		CASE(failed_query_ends_the_copy),
		CASE(lost_device_ends_the_copy),
		CASE(freed_memory_is_refused),
		CASE(buffers_are_copied),
	};

	return cmocka_run_group_tests(tests, fixture_open, NULL);
}
