/* SPDX-License-Identifier: BSD-3-Clause */
#include "hip_fixture.h"

#include <dlfcn.h>
#include <stdlib.h>

/*
 * FIXTURE_HSA names an HSA runtime that was loaded first and is in use, but not by HIP:
 * it knows none of HIP's memory.
 */

static const struct pier_backend *const backend = &pier_hip_backend;

static void *open_other(void)
{
	void *other = dlopen(getenv("FIXTURE_HSA"), RTLD_NOW | RTLD_NOLOAD);
	void *own = dlopen("libhsa-runtime64.so.1", RTLD_NOW | RTLD_NOLOAD);

	assert_non_null(other);
	assert_non_null(own);
	assert_ptr_not_equal(other, own);
	dlclose(own);
	return other;
}

static unsigned int call(void *runtime, const char *name)
{
	void *symbol = dlsym(runtime, name);
	unsigned int (*function)(void);

	assert_non_null(symbol);
	memcpy(&function, &symbol, sizeof(function));
	return function();
}

static void uses_the_runtime_of_hip(void **state)
{
	struct pier_backend_export dmabuf;
	struct pier_memory memory;
	void *other = open_other(), *device = NULL;

	(void)state;
	assert_int_equal(call(other, "hsa_init"), 0);
	assert_int_equal(fixture.hipMalloc(&device, 8192), 0);
	expect_ok(call_find(backend, (uint64_t)(uintptr_t)device, 8192, &memory));
	expect_ok(backend->copy_to(&memory, 5000, "own", 4));
	expect_ok(call_export(backend, &memory, memory.address + 4096, 4096,
			      PIER_MAPPING_DEFAULT, &dmabuf));
	fixture_expect_bytes(dmabuf.fd, dmabuf.offset + 904, "own", 4);
	backend->close_export(&dmabuf);
	backend->release(&memory);
	assert_int_equal(fixture.hipFree(device), 0);
	assert_int_equal(call(other, "hsa_shut_down"), 0);
	dlclose(other);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		fixture_test(uses_the_runtime_of_hip),
	};

	return cmocka_run_group_tests_name("hip_two_hsa", tests, fixture_open, NULL);
}
