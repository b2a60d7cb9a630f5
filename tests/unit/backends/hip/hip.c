/* SPDX-License-Identifier: BSD-3-Clause */
#include "hip_fixture.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Allocating, copying, and the state of the calling thread. */

static const struct pier_backend *const backend = &pier_hip_backend;

static void expect_alloc_fails(const char *unit, uint64_t length, int error,
			       const char *sentence)
{
	struct pier_memory memory = { .address = 7 };

	expect_result(backend->alloc(unit, length, &memory), -error);
	test_assert_sentence(sentence);
	assert_int_equal(memory.address, 7);
}

static void expect_facts(const struct pier_memory *memory, const char *kind,
			 const char *unit, bool host)
{
	struct pier_memory_facts facts = { .kind = "" };

	backend->describe(memory, &facts);
	assert_string_equal(facts.kind, kind);
	assert_string_equal(facts.unit, unit);
	assert_int_equal(facts.host, host);
	assert_int_equal(facts.no_export[0] != '\0', host);
}

static void allocates_every_kind(void **state)
{
	static const struct {
		const char *unit, *kind, *device;
		bool host;
	} kinds[] = {
		{ NULL, "hipMalloc", "0", false },
		{ "1", "hipMalloc", "1", false },
		{ "0:fine", "fine-grained device memory", "0", false },
		{ "1:host", "page-locked host memory", "1", true },
	};
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	(void)state;
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		struct pier_memory memory;

		expect_ok(backend->alloc(kinds[i].unit, page + 5, &memory));
		assert_int_equal(memory.length, 2 * page);
		assert_int_equal(memory.address % page, 0);
		assert_int_equal(memory.cpu != NULL, kinds[i].host);
		expect_facts(&memory, kinds[i].kind, kinds[i].device, kinds[i].host);
		assert_int_equal(fixture.fake->bytes[1] > 0, i == 1);
		backend->free(&memory);
	}
}

/* Read directly: a copy would wait for unfinished work. */
static void zeroes_new_memory(void **state)
{
	static const char *const units[] = { "0", "0:fine", "0:host" };
	static const char zeros[3 << 20];

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		struct pier_memory memory;

		expect_ok(backend->alloc(units[i], sizeof(zeros), &memory));
		assert_memory_equal(
			fixture.reach((void *)(uintptr_t)memory.address, sizeof(zeros)),
			zeros, sizeof(zeros));
		backend->free(&memory);
	}
}

static void refuses_invalid_units(void **state)
{
	static const char *const wrong[] = {
		"x",  "-1",    "+1",   "00",  "01",	 "0x1",	     "1 ",  " 1",
		"0:", ":host", "host", "0:h", "0:hosts", "0:host:1", "0,1", "1:FINE",
	};
	char sentence[64];

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		snprintf(sentence, sizeof(sentence), "N, N:host and N:fine");
		expect_alloc_fails(wrong[i], 100, EINVAL, sentence);
		snprintf(sentence, sizeof(sentence), "\"%s\"", wrong[i]);
		test_assert_sentence(sentence);
	}
	expect_alloc_fails("2", 100, EINVAL, "HIP has 2 devices, 0 to 1, but \"2\"");
	expect_alloc_fails("7:host", 100, EINVAL, "2 devices, 0 to 1, but \"7:host\"");
	expect_alloc_fails("99999999999999999999999", 100, EINVAL, "0 to 1, but \"999");
	expect_alloc_fails("4294967296", 100, EINVAL, "0 to 1, but \"4294967296\"");
	fixture.fake->devices = 1;
	expect_alloc_fails("1:fine", 100, EINVAL, "one device, 0, but \"1:fine\"");
}

static void copies_both_ways(void **state)
{
	char source[5000], back[5000], guards[5002];
	struct pier_memory memory;

	(void)state;
	for (size_t i = 0; i < sizeof(source); i++)
		source[i] = (char)(i * 7);
	expect_ok(backend->alloc("1", 3 << 20, &memory));
	expect_ok(backend->copy_to(&memory, 4095, source, sizeof(source)));
	expect_ok(backend->copy_from(&memory, 4095, back, sizeof(back)));
	assert_memory_equal(back, source, sizeof(back));
	expect_ok(backend->copy_from(&memory, 4094, guards, sizeof(guards)));
	assert_int_equal(guards[0], 0);
	assert_memory_equal(guards + 1, source, sizeof(source));
	assert_int_equal(guards[5001], 0);
	backend->free(&memory);
}

static void host_memory_needs_no_hip(void **state)
{
	struct pier_memory memory;
	char back[4];

	(void)state;
	expect_ok(backend->alloc("0:host", 100, &memory));
	fixture.fake->lost_call = 1;
	fixture.fake->lost_error = 719;
	expect_ok(backend->copy_to(&memory, 50, "abc", 4));
	expect_ok(backend->copy_from(&memory, 50, back, 4));
	assert_string_equal(back, "abc");
	assert_string_equal((char *)memory.cpu + 50, "abc");
	expect_ok(call_flush(backend, &memory));
	fixture.fake->lost_call = 0;
	backend->free(&memory);
}

/* After each call, also a failed one, the thread's current device is as before. */
static void keeps_the_current_device(void **state)
{
	char byte = 'x', pci[16];
	struct pier_memory memory;
	int device = -1, node;

	(void)state;
	assert_int_equal(fixture.hipSetDevice(1), 0);
#define EXPECT_DEVICE()                                             \
	do {                                                        \
		assert_int_equal(fixture.hipGetDevice(&device), 0); \
		assert_int_equal(device, 1);                        \
		assert_int_equal(fixture.hipPeekAtLastError(), 0);  \
	} while (0)
	expect_ok(backend->alloc("0", 4096, &memory));
	assert_true(fixture.fake->bytes[0] > 0);
	assert_int_equal(fixture.fake->bytes[1], 0);
	EXPECT_DEVICE();
	expect_ok(backend->copy_to(&memory, 0, &byte, 1));
	EXPECT_DEVICE();
	expect_ok(backend->copy_from(&memory, 0, &byte, 1));
	EXPECT_DEVICE();
	expect_ok(backend->locate(&memory, pci, &node));
	expect_ok(call_flush(backend, &memory));
	EXPECT_DEVICE();
	expect_alloc_fails("0", 2ULL << 30, ENOMEM, "1073741824 are free");
	EXPECT_DEVICE();
	expect_alloc_fails("5", 1, EINVAL, "2 devices");
	EXPECT_DEVICE();
	fixture_fail("hipMemcpyAsync", 719);
	expect_result(backend->copy_from(&memory, 0, &byte, 1), -EIO);
	EXPECT_DEVICE();
	backend->free(&memory);
	EXPECT_DEVICE();
	assert_int_equal(fixture.hipSetDevice(0), 0);
}

/* Successful calls do not clear an error of the application. */
static void keeps_the_last_error(void **state)
{
	struct pier_memory memory;

	(void)state;
	assert_int_equal(fixture.hipSetDevice(99), 101);
	expect_ok(backend->alloc("0", 4096, &memory));
	backend->free(&memory);
	assert_int_equal(fixture.hipGetLastError(), 101);
}

static void reports_exhausted_memory(void **state)
{
	struct pier_memory memory;

	(void)state;
	fixture.fake->memory = 1 << 20;
	expect_ok(backend->alloc("0", 512 << 10, &memory));
	expect_alloc_fails(
		"0", 768 << 10, ENOMEM,
		"device 0 has no 786432 bytes: 524288 of its 1048576 are free");
	expect_alloc_fails("0", UINT64_MAX, ENOMEM, "more than there are addresses");
	expect_alloc_fails("0:host", UINT64_MAX / 2, ENOMEM, "hipErrorOutOfMemory (2)");
	backend->free(&memory);
}

/* A failure at any step leaves nothing behind. */
static void failed_allocation_leaves_nothing_behind(void **state)
{
	static const struct {
		const char *function;
		unsigned int error;
		int result;
		const char *sentence;
	} faults[] = {
		{ "hipMalloc", 2, ENOMEM, "are free" },
		{ "hipMalloc", 719, EIO, "hipErrorLaunchFailure (719); the device" },
		{ "hipMemsetAsync", 700, EIO,
		  "clearing 4096 bytes on device 1: hipErrorIllegalAddress" },
		{ "hipStreamCreateWithFlags", 2, ENOMEM, "making a stream on device 1" },
		{ "hipStreamSynchronize", 999, EIO, "hipErrorUnknown (999)" },
		{ "hipGetDevice", 3, ENODEV, "current device: hipErrorNotInitialized" },
		{ "hipSetDevice", 101, ENODEV, "making device 1 current" },
		{ "hipGetDeviceCount", 35, EOPNOTSUPP, "amdgpu driver is too old" },
		{ "hipMalloc", 4711, EIO, "hipErrorOfTheFake (4711)" },
		{ "hipMalloc", 900, EBUSY, "captured into a graph" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
		/* So that there is one to create. */
		fixture.reset(1);
		fixture_fail(faults[i].function, faults[i].error);
		expect_alloc_fails("1", 4096, faults[i].result, faults[i].sentence);
		assert_int_equal(fixture.fake->fail_call, 0);
		assert_int_equal(fixture.fake->allocations, 0);
		assert_int_equal(fixture.hipPeekAtLastError(), 0);
	}
}

static void reports_a_lost_device(void **state)
{
	struct pier_memory memory;
	char byte = 1;

	(void)state;
	expect_ok(backend->alloc("0", 4096, &memory));
	fixture.fake->lost_call = 1;
	fixture.fake->lost_error = 719;
	expect_result(backend->copy_to(&memory, 0, &byte, 1), -EIO);
	test_assert_sentence("end the process, and look for amdgpu in the kernel's log");
	expect_result(backend->copy_from(&memory, 0, &byte, 1), -EIO);
	assert_int_equal(byte, 1);
	expect_alloc_fails("0", 1, EIO, "hipErrorLaunchFailure");
	fixture.fake->lost_call = 0;
	backend->free(&memory);
	fixture.hipGetLastError();
}

static void flushes_writes_of_the_nic(void **state)
{
	struct pier_memory memory;

	(void)state;
	fixture.fake->registers[0] = fixture.fake->registers[1] = 0;
	expect_ok(backend->alloc("1", 4096, &memory));
	assert_int_equal(fixture.fake->registers[1], 0);
	/* First the NIC, and then the data path that the NIC's writes went through. */
	expect_result(call_flush_once(backend, &memory, PIER_MAPPING_DEFAULT, false),
		      PIER_BACKEND_READ_BACK);
	assert_int_equal(fixture.fake->registers[1], 0);
	expect_ok(call_flush_once(backend, &memory, PIER_MAPPING_DEFAULT, true));
	assert_int_equal(fixture.fake->registers[1], 1);
	assert_int_equal(fixture.fake->registers[0], 0);
	backend->free(&memory);

	fixture.fake->hdp = false;
	fixture.fake->registers[1] = 0;
	expect_ok(backend->alloc("1", 4096, &memory));
	expect_ok(call_flush(backend, &memory));
	assert_int_equal(fixture.fake->registers[1], 0);
	backend->free(&memory);
}

static void lists_units(void **state)
{
	struct pier_backend_unit unit;
	struct pier_memory memory;
	char pci[16] = "?";
	int node = 7;

	(void)state;
	expect_ok(backend->unit(1, &unit));
	assert_string_equal(unit.unit, "1");
	assert_string_equal(unit.name, "Fake Instinct 1");
	assert_string_equal(unit.pci, "0000:c2:00.0");
	assert_int_equal(unit.numa_node, -1);
	assert_string_equal(unit.detail, "1024 MiB");
	expect_result(backend->unit(2, &unit), -ENOENT);
	expect_result(backend->unit(UINT32_MAX, &unit), -ENOENT);

	expect_ok(backend->alloc("0", 4096, &memory));
	expect_ok(backend->locate(&memory, pci, &node));
	assert_string_equal(pci, "0000:c1:00.0");
	assert_int_equal(node, -1);
	backend->free(&memory);
	expect_ok(backend->alloc("0:host", 4096, &memory));
	expect_ok(backend->locate(&memory, pci, &node));
	assert_string_equal(pci, "");
	backend->free(&memory);
}

static void probes_the_runtime(void **state)
{
	char detail[256] = "";

	(void)state;
	expect_ok(backend->probe(detail, sizeof(detail)));
	assert_string_equal(detail,
			    "2 devices, HIP 6.2; dma-bufs, by the default mapping "
			    "or over PCIe");
	fixture.fake->dmabuf = false;
	fixture.fake->devices = 1;
	expect_ok(backend->probe(detail, sizeof(detail)));
	assert_string_equal(detail, "1 device, HIP 6.2; no dma-bufs: the kernel's amdgpu "
				    "driver is too old for them");
}

static void locks_host_memory(void **state)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	void *pages = aligned_alloc(page, 4 * page);
	struct pier_memory memory;

	(void)state;
	expect_ok(backend->alloc("1", 4096, &memory));
	expect_ok(backend->lock_host(&memory, pages, 4 * page));
	assert_int_equal(fixture.fake->registrations, 1);
	expect_result(backend->lock_host(&memory, pages, page), -EEXIST);
	test_assert_sentence("hipErrorHostMemoryAlreadyRegistered");
	backend->unlock_host(&memory, pages);
	assert_int_equal(fixture.fake->registrations, 0);
	backend->free(&memory);
	free(pages);
}

static void *churn(void *argument)
{
	int device = -1, mine = *(int *)argument;
	char unit[2] = { (char)('0' + !mine), 0 };

	assert_int_equal(fixture.hipSetDevice(mine), 0);
	for (int i = 0; i < 50; i++) {
		struct pier_memory memory;
		char in[100], out[100];

		memset(in, i + mine, sizeof(in));
		expect_ok(backend->alloc(unit, 5000, &memory));
		expect_ok(backend->copy_to(&memory, 4900, in, sizeof(in)));
		expect_ok(backend->copy_from(&memory, 4900, out, sizeof(out)));
		assert_memory_equal(in, out, sizeof(in));
		backend->free(&memory);
		assert_int_equal(fixture.hipGetDevice(&device), 0);
		assert_int_equal(device, mine);
	}
	return NULL;
}

static void threads_can_share_the_backend(void **state)
{
	pthread_t threads[4];
	int devices[4] = { 0, 1, 0, 1 };

	(void)state;
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, churn, &devices[i]),
				 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		fixture_test(allocates_every_kind),
		fixture_test(zeroes_new_memory),
		fixture_test(refuses_invalid_units),
		fixture_test(copies_both_ways),
		fixture_test(host_memory_needs_no_hip),
		fixture_test(keeps_the_current_device),
		fixture_test(keeps_the_last_error),
		fixture_test(reports_exhausted_memory),
		fixture_test(failed_allocation_leaves_nothing_behind),
		fixture_test(reports_a_lost_device),
		fixture_test(flushes_writes_of_the_nic),
		fixture_test(lists_units),
		fixture_test(probes_the_runtime),
		fixture_test(locks_host_memory),
		fixture_test(threads_can_share_the_backend),
	};

	return cmocka_run_group_tests_name("hip", tests, fixture_open, NULL);
}
