/* SPDX-License-Identifier: BSD-3-Clause */
/* Which libraries the process has loaded, as the backends ask it. */
#include "tests/support/cmocka.h"

#include <dlfcn.h>

#include "backends/loaded.h"

static void returns_the_path_of_a_library(void **state)
{
	char path[256] = "";
	void *object;

	(void)state;
	assert_true(pier_find_loaded("libc.so", NULL, path, sizeof(path)));
	assert_non_null(strstr(path, "/libc.so"));
	object = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
	assert_non_null(object);
	dlclose(object);
	/* The file's name must match from its start; the result is cut to fit. */
	assert_false(pier_find_loaded("ibc.so", NULL, path, sizeof(path)));
	assert_false(pier_find_loaded("libc.so", NULL, path, strlen(path)));
}

/* A missing library is looked for again only after something was loaded. */
static void searches_again_only_after_a_load(void **state)
{
	atomic_ullong memo = 0;
	char path[256];
	void *object;

	(void)state;
	assert_true(pier_find_loaded("libc.so", &memo, path, sizeof(path)));
	assert_int_equal(memo, 0);
	assert_false(pier_find_loaded("libpier-nothing.so", &memo, path, sizeof(path)));
	assert_int_not_equal(memo, 0);
	/* Given another name, to show that no search takes place. */
	assert_false(pier_find_loaded("libc.so", &memo, path, sizeof(path)));
	object = dlopen(ANOTHER_LIBRARY, RTLD_NOW | RTLD_LOCAL);
	assert_non_null(object);
	assert_true(pier_find_loaded("libc.so", &memo, path, sizeof(path)));
	dlclose(object);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(returns_the_path_of_a_library),
		cmocka_unit_test(searches_again_only_after_a_load),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
