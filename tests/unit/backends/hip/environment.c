/* SPDX-License-Identifier: BSD-3-Clause */
#include "hip_fixture.h"

#include <errno.h>

/* The settings of tests/unit/meson.build reach the backend. */

static const struct pier_backend *const backend = &pier_hip_backend;

static void applies_the_settings(void **state)
{
	struct pier_backend_export dmabuf[2];
	struct pier_backend_unit unit;
	struct pier_memory memory;
	char detail[256];

	(void)state;
	expect_ok(backend->probe(detail, sizeof(detail)));
	assert_memory_equal(detail, "3 devices, HIP 7.0; ", 20);
	expect_ok(backend->unit(2, &unit));
	assert_string_equal(unit.detail, "1 MiB");
	expect_ok(backend->alloc("2", 4096, &memory));
	expect_ok(call_flush(backend, &memory));
	assert_int_equal(fixture.fake->registers[2], 0);
	assert_int_equal(fixture.fake->pcie, FAKE_HIP_PCIE_REQUIRED);
	assert_false(fixture.fake->reserved);
	assert_true(fixture.fake->partitions);
	assert_true(fixture.fake->wide);
	assert_true(fixture.fake->gtt);
	expect_ok(call_export(backend, &memory, memory.address, 4096,
			      PIER_MAPPING_DEFAULT, &dmabuf[0]));
	expect_result(call_export(backend, &memory, memory.address, 4096,
				  PIER_MAPPING_DEFAULT, &dmabuf[1]),
		      -ENOMEM);
	backend->close_export(&dmabuf[0]);
	backend->free(&memory);
	/* The setting makes its second call fail, and no later one. */
	expect_result(backend->alloc("0", 4096, &memory), -ENOMEM);
	expect_ok(backend->alloc("0", 4096, &memory));
	backend->free(&memory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		fixture_test(applies_the_settings),
	};

	return cmocka_run_group_tests_name("hip_environment", tests, fixture_open, NULL);
}
