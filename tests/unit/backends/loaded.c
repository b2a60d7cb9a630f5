/* SPDX-License-Identifier: BSD-3-Clause */
/* Which libraries this process has, as the backends ask it. */
#include "tests/support/cmocka.h"

#include <dlfcn.h>

#include "backends/loaded.h"

static void test_path(void **state)
{
	char path[256] = "";
	void *object;

	(void)state;
	assert_true(pier_find_loaded("libc.so", NULL, path, sizeof(path)));
	assert_non_null(strstr(path, "/libc.so"));
	object = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
	assert_non_null(object);
	dlclose(object);
	/* Of the file's name, from its start on; and what fits. */
	assert_false(pier_find_loaded("ibc.so", NULL, path, sizeof(path)));
	assert_false(pier_find_loaded("libc.so", NULL, path, strlen(path)));
}

/* What was not there is looked for again when something was loaded, and not before. */
static void test_memo(void **state)
{
	atomic_ullong memo = 0;
	char path[256];
	void *object;

	(void)state;
	assert_true(pier_find_loaded("libc.so", &memo, path, sizeof(path)));
	assert_int_equal(memo, 0);
	assert_false(pier_find_loaded("libpier-nothing.so", &memo, path, sizeof(path)));
	assert_int_not_equal(memo, 0);
	/* Of another name, only to show that none is looked at. */
	assert_false(pier_find_loaded("libc.so", &memo, path, sizeof(path)));
	object = dlopen(ANOTHER_LIBRARY, RTLD_NOW | RTLD_LOCAL);
	assert_non_null(object);
	assert_true(pier_find_loaded("libc.so", &memo, path, sizeof(path)));
	dlclose(object);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_path),
		cmocka_unit_test(test_memo),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
