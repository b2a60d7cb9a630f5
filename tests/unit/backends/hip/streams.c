/* SPDX-License-Identifier: BSD-3-Clause */
#include "hip_fixture.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include <pier/buffer.h>

/* The calls that pier makes while an application uses streams and graphs. */

static const struct pier_backend *const backend = &pier_hip_backend;

enum {
	GLOBAL,
	THREAD_LOCAL,
	RELAXED
};

static void expect_copies(const struct pier_memory *memory)
{
	char back[6] = "";

	expect_ok(backend->copy_to(memory, 3, "bytes", 6));
	expect_ok(backend->copy_from(memory, 3, back, 6));
	assert_string_equal(back, "bytes");
}

/*
 * A kernel that polls for these bytes would deadlock with a copy that waits for the
 * kernel.
 */
static void does_not_wait_for_a_kernel(void **state)
{
	struct pier_memory memory, found;
	void *pointer = NULL;

	(void)state;
	fixture.fake->kernel_polls = true;
	expect_ok(backend->alloc("1", 4096, &memory));
	expect_copies(&memory);
	assert_int_equal(fixture.hipMalloc(&pointer, 4096), 0);
	expect_ok(call_find(backend, (uint64_t)(uintptr_t)pointer, UINT64_MAX, &found));
	expect_copies(&found);
	assert_int_equal(fixture.fake->hangs, 0);
	backend->release(&found);
	backend->free(&memory);
	assert_int_equal(fixture.hipFree(pointer), 0);
}

/* Then the first use makes no stream, and nothing waits for kernels. */
static void warm_up_makes_the_stream(void **state)
{
	struct pier_memory memory;
	size_t streams;

	(void)state;
	streams = fixture.fake->streams;
	fixture.fake->kernel_polls = true;
	expect_ok(pier_backend_warm_up("hip:1"));
	assert_int_equal(fixture.fake->streams, streams + 1);
	expect_ok(pier_backend_warm_up("hip:1:fine"));
	expect_ok(backend->alloc("1", 4096, &memory));
	expect_copies(&memory);
	assert_int_equal(fixture.fake->streams, streams + 1);
	backend->free(&memory);
	expect_result(pier_backend_warm_up("hip:2"), -EINVAL);
	test_assert_sentence("HIP has 2 devices");
	expect_result(pier_backend_warm_up("hip:x"), -EINVAL);
}

/* One stream for each device, however many copies. */
static void keeps_its_streams(void **state)
{
	struct pier_memory memory;
	size_t streams;

	(void)state;
	fixture.reset(0);
	streams = fixture.fake->streams;
	expect_ok(backend->alloc("0", 4096, &memory));
	for (int i = 0; i < 3; i++)
		expect_copies(&memory);
	assert_int_equal(fixture.fake->streams, streams + 1);
	/* hipDeviceReset() destroys it. */
	fixture.reset(0);
	assert_int_equal(fixture.fake->streams, streams);
	expect_copies(&memory);
	assert_int_equal(fixture.fake->streams, streams + 1);
	backend->free(&memory);
}

/* A lost device does not cause another stream to be created. */
static void survives_failing_streams(void **state)
{
	struct pier_memory memory;
	size_t streams;
	char byte = 1;

	(void)state;
	expect_ok(backend->alloc("0", 4096, &memory));
	streams = fixture.fake->streams;
	fixture_fail("hipStreamSynchronize", 719);
	expect_result(backend->copy_from(&memory, 0, &byte, 1), -EIO);
	test_assert_sentence(
		"copying 1 bytes from device 0: hipErrorLaunchFailure (719)");
	assert_int_equal(byte, 1);
	fixture.reset(0);
	fixture_fail("hipStreamCreateWithFlags", 2);
	expect_result(backend->copy_to(&memory, 0, &byte, 1), -ENOMEM);
	test_assert_sentence("making a stream on device 0: hipErrorOutOfMemory (2)");
	expect_copies(&memory);
	assert_int_equal(fixture.fake->streams, streams);
	backend->free(&memory);
}

static void use_all(const char *unit, char *plain, size_t page)
{
	struct pier_backend_export dmabuf;
	uint64_t start, length;
	struct pier_memory memory, found;

	expect_ok(backend->alloc(unit, page, &memory));
	expect_copies(&memory);
	expect_ok(call_find(backend, memory.address, UINT64_MAX, &found));
	expect_ok(backend->segment(&found, found.address, &start, &length));
	backend->release(&found);
	if (!memory.cpu) {
		expect_ok(call_export(backend, &memory, memory.address, page,
				      PIER_MAPPING_DEFAULT, &dmabuf));
		backend->close_export(&dmabuf);
	}
	expect_ok(call_flush(backend, &memory));
	expect_ok(backend->lock_host(&memory, plain, page));
	backend->unlock_host(&memory, plain);
	backend->free(&memory);
}

/* Everything that pier does, while another thread captures. */
static void does_not_end_a_capture(void **state)
{
	static const char *const units[] = { "0", "1:fine", "0:host" };
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *plain = aligned_alloc(page, page);

	(void)state;
	assert_non_null(plain);
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		fixture.reset(0);
		fixture.reset(1);
		fixture.fake->capturing = true;
		use_all(units[i], plain, page);
		fixture.fake->capturing = false;
	}
	assert_int_equal(fixture.fake->breaks, 0);
	free(plain);
}

static unsigned int exchange(unsigned int mode)
{
	assert_int_equal(fixture.hipThreadExchangeStreamCaptureMode(&mode), 0);
	return mode;
}

/* The thread's mode is restored, also after a failure. */
static void restores_the_capture_mode(void **state)
{
	struct pier_memory memory, other;
	char byte = 1;

	(void)state;
	for (unsigned int mode = GLOBAL; mode <= RELAXED; mode++) {
		exchange(mode);
		expect_ok(backend->alloc("1", 1, &memory));
		assert_int_equal(exchange(mode), mode);
		fixture_fail("hipSetDevice", 101);
		expect_result(backend->copy_to(&memory, 0, &byte, 1), -ENODEV);
		assert_int_equal(exchange(mode), mode);
		fixture_fail("hipMalloc", 2);
		expect_result(backend->alloc("0", 1, &other), -ENOMEM);
		assert_int_equal(exchange(mode), mode);
		/* If the mode cannot be changed, it is not restored either. */
		fixture_fail("hipThreadExchangeStreamCaptureMode", 999);
		expect_ok(backend->copy_to(&memory, 0, &byte, 1));
		assert_int_equal(exchange(mode), mode);
		backend->free(&memory);
		assert_int_equal(exchange(GLOBAL), mode);
	}
}

/* Freed memory is distinguished from new memory at its address. */
static void refuses_freed_memory(void **state)
{
	void *pointer = NULL, *again = NULL;
	struct pier_memory memory;
	char byte = 1;

	(void)state;
	assert_int_equal(fixture.hipMalloc(&pointer, 4096), 0);
	expect_ok(call_find(backend, (uint64_t)(uintptr_t)pointer, UINT64_MAX, &memory));
	assert_int_equal(fixture.hipFree(pointer), 0);
	expect_result(backend->copy_to(&memory, 0, &byte, 1), -EFAULT);
	test_assert_sentence("was freed after it was wrapped");
	assert_int_equal(fixture.hipMalloc(&again, 4096), 0);
	assert_ptr_equal(again, pointer);
	expect_result(backend->copy_to(&memory, 0, &byte, 1), -EFAULT);
	expect_result(backend->copy_from(&memory, 0, &byte, 1), -EFAULT);
	assert_int_equal(byte, 1);
	backend->release(&memory);
	assert_int_equal(fixture.hipFree(again), 0);
}

/* A lost device is distinguished from freed memory. */
static void reports_a_lost_device(void **state)
{
	struct pier_memory memory;
	void *pointer = NULL;
	char byte = 1;

	(void)state;
	assert_int_equal(fixture.hipMalloc(&pointer, 4096), 0);
	expect_ok(call_find(backend, (uint64_t)(uintptr_t)pointer, UINT64_MAX, &memory));
	fixture.fake->lost_error = 719;
	/* Fail from each of the calls on; a copy makes at least five. */
	for (unsigned int call = 1; call <= 5; call++) {
		fixture.fake->lost_call = call;
		expect_result(backend->copy_to(&memory, 0, &byte, 1), -EIO);
		test_assert_sentence("hipErrorLaunchFailure (719)");
	}
	fixture.fake->lost_call = 0;
	backend->release(&memory);
	assert_int_equal(fixture.hipFree(pointer), 0);
	fixture.hipGetLastError();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		/* Before anything else has made a stream. */
		fixture_test(warm_up_makes_the_stream),
		fixture_test(does_not_wait_for_a_kernel),
		fixture_test(keeps_its_streams),
		fixture_test(survives_failing_streams),
		fixture_test(does_not_end_a_capture),
		fixture_test(restores_the_capture_mode),
		fixture_test(refuses_freed_memory),
		fixture_test(reports_a_lost_device),
	};

	return cmocka_run_group_tests(tests, fixture_open, NULL);
}
