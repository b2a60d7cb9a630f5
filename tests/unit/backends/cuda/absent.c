/* SPDX-License-Identifier: BSD-3-Clause */
/* A machine without the driver, and one with another library of that name. */
#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"
#include "tests/support/backend.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <pier/pier.h>

#include "backends/backend.h"

static const struct pier_backend *const cuda = &pier_cuda_backend;

/* The expected reason if the build puts another library first in the search path. */
static const char *expected(void)
{
	const char *other = getenv("PIER_TEST_OTHER_LIBRARY");

	return other ? "libcuda.so.1 has no cuInit" : "no CUDA driver: libcuda.so.1";
}

static void skip_with_driver(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);

	if (!library)
		return;
	if (dlsym(library, "cuInit")) {
		print_message("skipped: this machine has a CUDA driver\n");
		skip();
	}
	dlclose(library);
}

static void reports_why_it_is_absent(void **state)
{
	struct test_census before;
	struct pier_backend_unit unit;
	struct pier_buffer *buffer;
	char detail[512];
	int result;

	(void)state;
	skip_with_driver();
	before = test_take_census();
	for (int again = 0; again < 2; again++) {
		result = cuda->probe(detail, sizeof(detail));
		assert_int_equal(result, -EOPNOTSUPP);
		if (!strstr(detail, expected()))
			fail_msg("\"%s\" is not in: %s", expected(), detail);
		expect_result(pier_buffer_alloc("cuda", 1, &buffer), -EOPNOTSUPP);
		test_assert_sentence(expected());
		expect_result(pier_buffer_alloc("cuda:7:vmm", 1, &buffer), -EOPNOTSUPP);
		expect_result(cuda->unit(0, &unit), -ENOENT);
		/* Host memory stays host memory. */
		expect_ok(pier_buffer_wrap(&unit, sizeof(unit), &buffer));
		assert_string_equal(test_buffer_info(buffer).backend, "host");
		expect_ok(pier_buffer_free(buffer));
	}
	test_assert_census(&before);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reports_why_it_is_absent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
