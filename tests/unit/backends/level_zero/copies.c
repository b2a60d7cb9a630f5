/* SPDX-License-Identifier: BSD-3-Clause */
#include "level_zero_fixture.h"

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

/* Allocating and copying. */

static const struct pier_backend *const backend = &pier_level_zero_backend;

static void allocates_every_kind_zeroed(void **state)
{
	static const struct {
		const char *unit, *kind, *device;
		bool cpu, host, moves;
	} kinds[] = {
		{ NULL, "zeMemAllocDevice", "0", false, false, false },
		{ "1", "zeMemAllocDevice", "1", false, false, false },
		{ "1:host", "zeMemAllocHost", "1", true, true, false },
		{ "0:shared", "zeMemAllocShared", "0", true, false, true },
	};
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	(void)state;
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		struct pier_memory_facts facts = { .size = sizeof(facts) };
		struct pier_memory memory = { .size = sizeof(memory) };
		char *bytes;

		expect_ok(backend->alloc(kinds[i].unit, page + 5, &memory));
		assert_int_equal(memory.length, 2 * page);
		assert_int_equal(memory.address % page, 0);
		assert_int_equal(memory.cpu != NULL, kinds[i].cpu);
		bytes = fixture.reach((void *)(uintptr_t)memory.address);
		for (size_t k = 0; k < 2 * page; k++)
			assert_int_equal(bytes[k], 0);
		backend->describe(&memory, &facts);
		assert_string_equal(facts.kind, kinds[i].kind);
		assert_string_equal(facts.unit, kinds[i].device);
		assert_int_equal(facts.host, kinds[i].host);
		assert_int_equal(facts.moves, kinds[i].moves);
		assert_int_equal(facts.no_export[0] != '\0', kinds[i].cpu);
		assert_int_equal(fixture.fake->bytes[1] > 0, i == 1);
		backend->free(&memory);
	}
}

static void copies_both_ways(void **state)
{
	static const char *const units[] = { "1", "0:host", "0:shared" };
	char source[5000], back[5000], guards[5002];

	(void)state;
	for (size_t i = 0; i < sizeof(source); i++)
		source[i] = (char)(i * 7);
	for (size_t i = 0; i < 3; i++) {
		struct pier_memory memory = { .size = sizeof(memory) };

		expect_ok(backend->alloc(units[i], 1 << 20, &memory));
		expect_ok(backend->copy_to(&memory, 4095, source, sizeof(source)));
		expect_ok(backend->copy_from(&memory, 4095, back, sizeof(back)));
		assert_memory_equal(back, source, sizeof(back));
		expect_ok(backend->copy_from(&memory, 4094, guards, sizeof(guards)));
		assert_int_equal(guards[0], 0);
		assert_memory_equal(guards + 1, source, sizeof(source));
		assert_int_equal(guards[5001], 0);
		backend->free(&memory);
	}
	/* A kernel of the application may occupy the other queues. */
	assert_int_equal(fixture.fake->compute_copies, 0);
}

static void exhausted_memory_is_reported(void **state)
{
	struct pier_memory memory = { .size = sizeof(memory) };

	(void)state;
	fixture.fake->memory = 1 << 20;
	expect_result(backend->alloc("0", 2 << 20, &memory), -ENOMEM);
	test_assert_sentence("allocating 2097152 bytes of unit 0: "
			     "ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY (0x70000003)");
	fixture.fake->max_alloc = 1 << 19;
	expect_result(backend->alloc("0", 1 << 20, &memory), -E2BIG);
	test_assert_sentence("an allocation there has at most 536870912");
	expect_result(backend->alloc("0", UINT64_MAX, &memory), -ENOMEM);
	test_assert_sentence("more than there are addresses");
}

static void failed_calls_leave_nothing_behind(void **state)
{
	static const struct {
		const char *function;
		unsigned int error;
		int result;
	} faults[] = {
		{ "zeMemAllocDevice", 0x70000002, -ENOMEM },
		{ "zeCommandListCreateImmediate", 0x70000001, -EIO },
		{ "zeCommandListAppendMemoryFill", 0x70000001, -EIO },
		{ "zeCommandListAppendMemoryFill", 0x12345, -EIO },
	};
	struct pier_memory memory = { .size = sizeof(memory) };
	char byte = 0;

	(void)state;
	/* Destroys the idle list, so that the next call makes one. */
	expect_ok(backend->alloc("0", 1, &memory));
	fixture_fail("zeCommandListAppendMemoryCopy", 0x70000001);
	expect_result(backend->copy_from(&memory, 0, &byte, 1), -EIO);
	test_assert_sentence("copying 1 bytes by device 0: ZE_RESULT_ERROR_DEVICE_LOST");
	test_assert_sentence("restart the process");
	backend->free(&memory);
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
		size_t lists = fixture.fake->lists;

		fixture_fail(faults[i].function, faults[i].error);
		expect_result(backend->alloc("0", 1, &memory), faults[i].result);
		assert_int_equal(fixture.fake->fail_call, 0);
		assert_int_equal(fixture.fake->allocations, 0);
		assert_int_equal(fixture.fake->lists, lists);
	}
}

/* The NIC's read shows that its writes have arrived; more is not known to be needed. */
static void device_memory_is_read_back(void **state)
{
	struct pier_memory memory = { .size = sizeof(memory) };

	(void)state;
	expect_ok(backend->alloc("0", 1, &memory));
	expect_result(call_flush_once(backend, &memory, PIER_MAPPING_DEFAULT, false),
		      PIER_BACKEND_READ_BACK);
	expect_ok(call_flush_once(backend, &memory, PIER_MAPPING_DEFAULT, true));
	backend->free(&memory);
	expect_ok(backend->alloc("0:host", 1, &memory));
	expect_ok(call_flush_once(backend, &memory, PIER_MAPPING_AUTO, false));
	backend->free(&memory);
}

static void *churn(void *argument)
{
	char pattern = *(char *)argument;

	for (int i = 0; i < 50; i++) {
		struct pier_memory memory = { .size = sizeof(memory) };
		char in[100], out[100];

		memset(in, i + pattern, sizeof(in));
		expect_ok(backend->alloc("0", 5000, &memory));
		expect_ok(backend->copy_to(&memory, 4900, in, sizeof(in)));
		expect_ok(backend->copy_from(&memory, 4900, out, sizeof(out)));
		assert_memory_equal(in, out, sizeof(in));
		backend->free(&memory);
	}
	return NULL;
}

struct byte_copy {
	const struct pier_memory *memory;
	uint64_t offset;
};

static void *copy_byte(void *argument)
{
	const struct byte_copy *copy = argument;
	char byte = 'x';

	expect_ok(backend->copy_to(copy->memory, copy->offset, &byte, 1));
	return NULL;
}

/*
 * Copies do not wait for each other. A list in two threads is a misuse for the fake.
 * Each thread writes its own byte: two writes of one byte would be a data race.
 */
static void copies_of_two_threads_run_at_once(void **state)
{
	struct pier_memory memory = { .size = sizeof(memory) };
	struct byte_copy copies[] = { { &memory, 0 }, { &memory, 1 } };
	pthread_t threads[2];

	(void)state;
	expect_ok(backend->alloc("0", 2, &memory));
	fixture.fake->meet = 2;
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, copy_byte, &copies[i]),
				 0);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	backend->free(&memory);
}

static void threads_can_share_a_device(void **state)
{
	pthread_t threads[4];
	char patterns[4] = { 0, 60, 120, 7 };

	(void)state;
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, churn, &patterns[i]),
				 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		fixture_test(allocates_every_kind_zeroed),
		fixture_test(copies_both_ways),
		fixture_test(exhausted_memory_is_reported),
		fixture_test(failed_calls_leave_nothing_behind),
		fixture_test(device_memory_is_read_back),
		fixture_test(copies_of_two_threads_run_at_once),
		fixture_test(threads_can_share_a_device),
	};

	return cmocka_run_group_tests_name("level_zero_copies", tests, fixture_open,
					   NULL);
}
