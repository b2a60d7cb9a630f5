/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/expect.h"
#include "tests/support/census.h"
#include "tests/support/backend.h"

#include <dlfcn.h>
#include <errno.h>

#include <pier/buffer.h>

#include "backends/backend.h"

/* A machine without Level Zero, or with its loader alone, which is the usual case. */

static const struct pier_backend *const backend = &pier_level_zero_backend;

static bool hidden; /* no library is found */

void *__real_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags);

void *__wrap_dlopen(const char *name, int flags)
{
	return __real_dlopen(hidden ? "/nowhere/libze_loader.so.1" : name, flags);
}

static void missing_loader_is_reported(void **state)
{
	struct test_census before = test_take_census();
	struct pier_backend_unit unit;
	struct pier_buffer *buffer;
	struct pier_memory memory;
	char detail[512] = "";
	uint64_t identity;

	(void)state;
	hidden = true;
	expect_result(backend->probe(detail, sizeof(detail)), -EOPNOTSUPP);
	assert_non_null(strstr(
		detail, "no Level Zero loader: /nowhere/libze_loader.so.1: cannot open"));
	assert_non_null(strstr(detail, "Install it (Debian: libze1)"));
	expect_result(pier_buffer_alloc("level_zero:1", 100, &buffer), -EOPNOTSUPP);
	test_assert_sentence(
		"allocating 100 bytes of level_zero:1: no Level Zero loader");
	/* An invalid spec is reported first: it is invalid on every machine. */
	expect_result(pier_buffer_alloc("level_zero:one", 100, &buffer), -EINVAL);
	expect_result(backend->unit(0, &unit), -ENOENT);
	expect_result(call_find(backend, (uint64_t)(uintptr_t)detail, 1, &memory),
		      -ENOENT);
	expect_result(backend->identity((uint64_t)(uintptr_t)detail, &identity), -ENOENT);
	hidden = false;
	test_assert_census(&before);
}

/* The real loader, which initialises no driver where there is no GPU. */
static void loader_without_driver_is_reported(void **state)
{
	struct pier_memory memory;
	char detail[512] = "";
	int result;

	(void)state;
	if (!dlopen("libze_loader.so.1", RTLD_NOW)) {
		print_message("skipped: no Level Zero loader (Debian: libze1)\n");
		skip();
	}
	expect_result(call_find(backend, (uint64_t)(uintptr_t)detail, 1, &memory),
		      -ENOENT);
	result = backend->probe(detail, sizeof(detail));
	if (result == 0) {
		print_message("skipped: this machine has %s\n", detail);
		skip();
	}
	assert_int_equal(result, -EOPNOTSUPP);
	assert_non_null(strstr(detail, "Level Zero has no GPU (ZE_RESULT_ERROR_"));
	expect_result(call_find(backend, (uint64_t)(uintptr_t)detail, 1, &memory),
		      -ENOENT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(missing_loader_is_reported),
		cmocka_unit_test(loader_without_driver_is_reported),
	};

	return cmocka_run_group_tests_name("level_zero_absent", tests, NULL, NULL);
}
