/* SPDX-License-Identifier: BSD-3-Clause */
#include "hip_fixture.h"

#include <dlfcn.h>
#include <errno.h>

#include <pier/buffer.h>

/*
 * Runtimes that lack functions: FIXTURE_HSA names one without the second version of the
 * export and exports of hipMemMap(), or without any export.
 */

static const struct pier_backend *const backend = &pier_hip_backend;

static bool has(const char *function)
{
	void *object = dlopen("libhsa-runtime64.so.1", RTLD_NOW | RTLD_NOLOAD);
	bool found;

	assert_non_null(object);
	found = dlsym(object, function) != NULL;
	dlclose(object);
	return found;
}

static void loads_an_old_runtime(void **state)
{
	(void)state;
	assert_false(has("hsa_amd_portable_export_dmabuf_v2"));
}

static void expect_refused(const struct pier_memory *memory, enum pier_mapping mapping,
			   const char *function, const char *way_out)
{
	struct pier_backend_export dmabuf = { .fd = -7 };
	size_t references = fixture.fake->references;

	expect_result(
		call_export(backend, memory, memory->address, 4096, mapping, &dmabuf),
		-EOPNOTSUPP);
	test_assert_sentence(function);
	test_assert_sentence("libamdhip64.so.6, of ROCm 5.2");
	test_assert_sentence(way_out);
	assert_int_equal(dmabuf.fd, -7);
	assert_int_equal(fixture.fake->references, references);
}

static void exports_as_far_as_the_runtime_can(void **state)
{
	struct pier_backend_export dmabuf;
	struct pier_memory memory;
	char detail[256];

	(void)state;
	fixture.fake->version = 50221153;
	expect_ok(backend->alloc("0", 8192, &memory));
	expect_ok(backend->copy_to(&memory, 5000, "old", 4));
	expect_ok(backend->probe(detail, sizeof(detail)));
	expect_refused(&memory, PIER_MAPPING_PCIE,
		       "the HSA runtime has no hsa_amd_portable_export_dmabuf_v2",
		       "or the default mapping");
	if (has("hsa_amd_portable_export_dmabuf")) {
		assert_non_null(strstr(detail, "by the default mapping alone"));
		expect_ok(call_export(backend, &memory, memory.address + 4096, 4096,
				      PIER_MAPPING_DEFAULT, &dmabuf));
		fixture_expect_bytes(dmabuf.fd, dmabuf.offset + 904, "old", 4);
		backend->close_export(&dmabuf);
	} else {
		assert_non_null(strstr(detail, "no dma-bufs: this ROCm is too old"));
		expect_refused(&memory, PIER_MAPPING_DEFAULT,
			       "has no hsa_amd_portable_export_dmabuf (",
			       "use a newer ROCm, or allow a bounce buffer");
	}
	backend->free(&memory);
}

static void names_what_memory_of_hipMemMap_needs(void **state)
{
	char *address = fixture_map(0, 2 << 20, 1, 1);
	struct pier_memory memory;

	(void)state;
	fixture.fake->version = 50221153;
	expect_ok(call_find(backend, (uint64_t)(uintptr_t)address, 4096, &memory));
	expect_refused(&memory, PIER_MAPPING_DEFAULT, "hsa_amd_vmem_retain_alloc_handle",
		       "from version 1.4 of HSA's AMD extensions on");
	backend->release(&memory);
	fixture_unmap(address, 2 << 20, 1, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		fixture_test(loads_an_old_runtime),
		fixture_test(exports_as_far_as_the_runtime_can),
		fixture_test(names_what_memory_of_hipMemMap_needs),
	};

	return cmocka_run_group_tests_name("hip_old", tests, fixture_open, NULL);
}
