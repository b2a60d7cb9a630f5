/* SPDX-License-Identifier: BSD-3-Clause */
#include "level_zero_fixture.h"

#include <errno.h>

/* Recognising an application's memory, in a context of its own. */

static const struct pier_backend *const backend = &pier_level_zero_backend;

static uint64_t to_address(const void *pointer)
{
	return (uint64_t)(uintptr_t)pointer;
}

static void device_memory_is_found(void **state)
{
	char *pointer = fixture_alloc(10000, true);
	struct pier_memory_facts facts = { .size = sizeof(facts) };
	struct pier_memory memory;
	char in[4] = "abc", out[4] = "";

	(void)state;
	expect_ok(call_find(backend, to_address(pointer) + 9000, 1, &memory));
	assert_int_equal(memory.address, to_address(pointer));
	assert_int_equal(memory.length, 12288);
	assert_null(memory.cpu);
	backend->describe(&memory, &facts);
	assert_string_equal(facts.kind, "zeMemAllocDevice");
	assert_string_equal(facts.unit, "1");
	assert_string_equal(facts.no_export, "");
	expect_ok(backend->copy_to(&memory, 9000, in, 4));
	expect_ok(backend->copy_from(&memory, 9000, out, 4));
	assert_string_equal(out, "abc");
	assert_string_equal((char *)fixture.reach(pointer + 9000), "abc");
	backend->release(&memory);
	fixture_free(pointer);
}

static void host_and_shared_memory_is_found(void **state)
{
	struct pier_ze_host_mem_alloc_desc host = {
		.stype = PIER_ZE_TYPE_HOST_MEM_ALLOC_DESC,
	};
	struct pier_ze_device_mem_alloc_desc device = {
		.stype = PIER_ZE_TYPE_DEVICE_MEM_ALLOC_DESC,
	};
	struct pier_memory_facts facts = { .size = sizeof(facts) };
	struct pier_memory memory;
	void *pointer = NULL;

	(void)state;
	assert_int_equal(
		fixture.call.zeMemAllocHost(fixture.context, &host, 100, 0, &pointer), 0);
	expect_ok(call_find(backend, to_address(pointer), 100, &memory));
	assert_ptr_equal(memory.cpu, pointer);
	assert_int_equal(memory.length, 100);
	backend->describe(&memory, &facts);
	assert_true(facts.host);
	backend->release(&memory);
	fixture_free(pointer);
	assert_int_equal(fixture.call.zeMemAllocShared(fixture.context, &device, &host,
						       100, 0, fixture.device, &pointer),
			 0);
	expect_ok(call_find(backend, to_address(pointer), 100, &memory));
	backend->describe(&memory, &facts);
	assert_false(facts.host);
	assert_true(facts.moves);
	assert_non_null(strstr(facts.no_export, "its pages move between"));
	backend->release(&memory);
	fixture_free(pointer);
}

static void other_memory_is_not_found(void **state)
{
	char *pointer = fixture_alloc(4096, true);
	struct pier_memory memory;
	uint64_t identity;

	(void)state;
	expect_result(call_find(backend, to_address(&memory), 1, &memory), -ENOENT);
	expect_result(backend->identity(to_address(&memory), &identity), -ENOENT);
	/* A driver that keeps to the specification, not Intel's. */
	fixture.fake->strict = true;
	expect_result(call_find(backend, to_address(pointer), 1, &memory), -ENOENT);
	fixture_free(pointer);
}

static void identity_tells_reused_memory_apart(void **state)
{
	char *pointer = fixture_alloc(4096, true), *second;
	uint64_t identity, same, other;

	(void)state;
	expect_ok(backend->identity(to_address(pointer), &identity));
	expect_ok(backend->identity(to_address(pointer) + 4095, &same));
	assert_int_equal(identity, same);
	fixture_free(pointer);
	expect_result(backend->identity(to_address(pointer), &same), -ENOENT);
	second = fixture_alloc(4096, true);
	assert_ptr_equal(second, pointer);
	expect_ok(backend->identity(to_address(second), &other));
	assert_int_not_equal(identity, other);
	/* The address says nothing. */
	fixture.fake->address_ids = true;
	expect_result(backend->identity(to_address(second), &other), -ENOENT);
	fixture_free(second);
}

/* It is not taken for host memory. */
static void failing_query_is_reported(void **state)
{
	char *pointer = fixture_alloc(4096, true);
	struct pier_memory memory;

	(void)state;
	fixture_fail("zeMemGetAddressRange", 0x7ffffffe);
	expect_result(call_find(backend, to_address(pointer), 1, &memory), -EIO);
	test_assert_sentence("ZE_RESULT_ERROR_UNKNOWN");
	expect_ok(call_find(backend, to_address(pointer), 1, &memory));
	backend->release(&memory);
	fixture_free(pointer);
}

/* The driver would take the pointer for host memory. */
static void freed_memory_is_refused(void **state)
{
	char *pointer = fixture_alloc(4096, true), *second;
	struct pier_backend_export dmabuf;
	struct pier_memory memory;
	char byte = 0;

	(void)state;
	expect_ok(call_find(backend, to_address(pointer), 1, &memory));
	fixture_free(pointer);
	expect_result(backend->copy_from(&memory, 0, &byte, 1), -EFAULT);
	second = fixture_alloc(4096, true);
	assert_ptr_equal(second, pointer);
	expect_result(backend->copy_to(&memory, 0, &byte, 1), -EFAULT);
	test_assert_sentence("was freed since it was wrapped");
	expect_result(call_export(backend, &memory, memory.address, 4096,
				  PIER_MAPPING_DEFAULT, &dmabuf),
		      -EFAULT);
	backend->release(&memory);
	fixture_free(second);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		fixture_test(device_memory_is_found),
		fixture_test(host_and_shared_memory_is_found),
		fixture_test(other_memory_is_not_found),
		fixture_test(identity_tells_reused_memory_apart),
		fixture_test(failing_query_is_reported),
		fixture_test(freed_memory_is_refused),
	};

	return cmocka_run_group_tests_name("level_zero_pointers", tests, fixture_start,
					   fixture_stop);
}
