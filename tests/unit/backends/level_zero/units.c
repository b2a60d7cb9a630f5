/* SPDX-License-Identifier: BSD-3-Clause */
#include "level_zero_fixture.h"

#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

/* Initialising the drivers, and their units. The tests run in this order. */

static const struct pier_backend *const backend = &pier_level_zero_backend;

/* The loader is loaded, and nobody called zeInit(). */
static void pointers_initialise_nothing(void **state)
{
	struct pier_memory memory;
	uint64_t identity, address = (uint64_t)(uintptr_t)&memory;

	(void)state;
	expect_result(call_find(backend, address, 1, &memory), -ENOENT);
	expect_result(backend->identity(address, &identity), -ENOENT);
	assert_int_equal(fixture.fake->initialised, 0);
}

static void machine_without_devices_is_reported(void **state)
{
	struct pier_memory memory;
	char detail[512] = "";

	(void)state;
	fixture.fake->devices = 0;
	expect_result(backend->probe(detail, sizeof(detail)), -EOPNOTSUPP);
	assert_non_null(strstr(detail, "no GPU (ZE_RESULT_ERROR_UNINITIALIZED, "
				       "0x78000001): install the GPU's driver"));
	expect_result(backend->alloc("0", 1, &memory), -EOPNOTSUPP);
	test_assert_sentence("ZE_AFFINITY_MASK");
	expect_result(backend->alloc("zero", 1, &memory), -EINVAL);
}

/* No failure is remembered, and nothing remains of it. */
static void failed_initialisation_leaves_nothing_behind(void **state)
{
	static const struct {
		const char *function;
		unsigned int call; /* of the driver of the GPUs, which is the second */
	} faults[] = {
		{ "zeInit", 1 },
		{ "zeDriverGet", 1 },
		{ "zeDeviceGet", 2 },
		{ "zeContextCreate", 2 },
	};
	char detail[512];

	(void)state;
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
		fixture_fail(faults[i].function, 0x70010000);
		fixture.fake->fail_call = faults[i].call;
		expect_result(backend->probe(detail, sizeof(detail)), -EOPNOTSUPP);
		assert_non_null(strstr(detail, "INSUFFICIENT_PERMISSIONS"));
		assert_int_equal(fixture.fake->contexts, 0);
	}
}

static void probe_counts_the_gpus(void **state)
{
	char detail[512];

	(void)state;
	/* Of the NPU's driver. */
	fixture_fail("zeDeviceGet", 0x70000001);
	expect_ok(backend->probe(detail, sizeof(detail)));
	assert_int_equal(fixture.fake->fail_call, 0);
	assert_string_equal(detail, "2 devices, Level Zero 1.3; dma-bufs");
	/* None for the NPU's driver, which is listed first. */
	assert_int_equal(fixture.fake->contexts, 1);
}

static void units_are_listed(void **state)
{
	struct pier_backend_unit unit = { .size = sizeof(unit) };
	struct pier_memory memory = { .size = sizeof(memory) };
	char pci[16] = "?";
	int node = 7;

	(void)state;
	expect_ok(backend->unit(1, &unit));
	assert_string_equal(unit.unit, "1");
	assert_string_equal(unit.name, "Fake Data Center GPU 1");
	assert_string_equal(unit.pci, "0000:d2:00.0");
	assert_int_equal(unit.numa_node, -1);
	assert_string_equal(unit.detail, "1024 MiB");
	expect_result(backend->unit(2, &unit), -ENOENT);
	expect_result(backend->unit(UINT32_MAX, &unit), -ENOENT);
	expect_ok(backend->alloc("1", 1, &memory));
	expect_ok(backend->locate(&memory, pci, &node));
	assert_string_equal(pci, "0000:d2:00.0");
	assert_int_equal(node, -1);
	backend->free(&memory);
	expect_ok(backend->alloc("1:host", 1, &memory));
	expect_ok(backend->locate(&memory, pci, &node));
	assert_string_equal(pci, "");
	backend->free(&memory);
}

static void invalid_units_are_refused(void **state)
{
	static const char *const wrong[] = { "x",     "-1",  "+1",     "00",
					     "0x1",   "1 ",  "0:",     "",
					     ":host", "0:h", "0:fine", "0:host:1" };
	struct pier_memory memory = { .size = sizeof(memory), .address = 7 };

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		expect_result(backend->alloc(wrong[i], 1, &memory), -EINVAL);
		test_assert_sentence("N, N:host and N:shared");
	}
	expect_result(backend->alloc("2", 1, &memory), -EINVAL);
	test_assert_sentence("2 GPUs, from 0 on, but \"2\"");
	expect_result(backend->alloc("99999999999999999999:host", 1, &memory), -EINVAL);
	assert_int_equal(memory.address, 7);
}

/* What a child of fork(2) may do; returns the number of the step that was wrong. */
static int use_in_child(struct pier_memory *memory, struct pier_backend_export *dmabuf)
{
	struct pier_backend_export other;
	struct pier_memory made = { .size = sizeof(made) };
	uint64_t identity;
	char byte;

	if (backend->alloc("0", 1, &made) != -ECHILD)
		return 1;
	if (backend->copy_from(memory, 0, &byte, 1) != -ECHILD)
		return 2;
	if (call_export(backend, memory, memory->address, 4096, PIER_MAPPING_DEFAULT,
			&other) != -ECHILD)
		return 3;
	if (call_find(backend, memory->address, 1, &made) != -ENOENT ||
	    backend->identity(memory->address, &identity) != -ENOENT)
		return 4;
	backend->close_export(dmabuf);
	backend->free(memory);
	return fixture.fake->misuses ? 5 : 0;
}

static void child_of_fork_calls_no_driver(void **state)
{
	struct pier_memory memory = { .size = sizeof(memory) };
	struct pier_backend_export dmabuf;
	int status;
	pid_t child;

	(void)state;
	expect_ok(backend->alloc("0", 4096, &memory));
	expect_ok(call_export(backend, &memory, memory.address, 4096,
			      PIER_MAPPING_DEFAULT, &dmabuf));
	child = fork();
	if (child == 0)
		_exit(use_in_child(&memory, &dmabuf));
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	backend->close_export(&dmabuf);
	backend->free(&memory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		fixture_test(pointers_initialise_nothing),
		fixture_test(machine_without_devices_is_reported),
		fixture_test(failed_initialisation_leaves_nothing_behind),
		fixture_test(probe_counts_the_gpus),
		fixture_test(units_are_listed),
		fixture_test(invalid_units_are_refused),
		fixture_test(child_of_fork_calls_no_driver),
	};

	return cmocka_run_group_tests_name("level_zero_units", tests, fixture_open, NULL);
}
