/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/expect.h"
#include "tests/support/census.h"
#include "tests/support/backend.h"

#include <dlfcn.h>
#include <errno.h>

#include <pier/buffer.h>

#include "backends/backend.h"

/* A machine without HIP, which is the usual case. */

static const struct pier_backend *const backend = &pier_hip_backend;

static void skip_with_hip(void)
{
	if (!dlopen("libamdhip64.so.6", RTLD_NOW) &&
	    !dlopen("libamdhip64.so.7", RTLD_NOW) &&
	    !dlopen("libamdhip64.so.5", RTLD_NOW) && !dlopen("libamdhip64.so", RTLD_NOW))
		return;
	print_message("skipped: this machine has HIP\n");
	skip();
}

static void reports_a_missing_runtime(void **state)
{
	struct test_census before = test_take_census();
	struct pier_backend_unit unit;
	struct pier_buffer *buffer;
	struct pier_memory memory;
	char detail[256] = "";
	uint64_t identity;

	(void)state;
	skip_with_hip();
	expect_result(backend->probe(detail, sizeof(detail)), -EOPNOTSUPP);
	assert_memory_equal(detail, "no HIP runtime: libamdhip64.so.6", 32);
	assert_non_null(strstr(detail, "Install ROCm's HIP runtime, or add its folder"));
	expect_result(pier_buffer_alloc("hip:1", 100, &buffer), -EOPNOTSUPP);
	test_assert_sentence("allocating 100 bytes of hip:1: no HIP runtime");
	/* An invalid spec is reported first: it is invalid on every machine. */
	expect_result(pier_buffer_alloc("hip:one", 100, &buffer), -EINVAL);
	expect_result(backend->unit(0, &unit), -ENOENT);
	expect_result(
		call_find(backend, (uint64_t)(uintptr_t)detail, UINT64_MAX, &memory),
		-ENOENT);
	expect_result(backend->identity((uint64_t)(uintptr_t)detail, &identity), -ENOENT);
	test_assert_census(&before);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reports_a_missing_runtime),
	};

	return cmocka_run_group_tests_name("hip_absent", tests, NULL, NULL);
}
