/* SPDX-License-Identifier: BSD-3-Clause */
#include "hip_fixture.h"

#include <errno.h>
#include <string.h>

#include <pier/pier.h>

/*
 * Memory of hipMemMap(): adjacent segments, each exported separately. The cases are run
 * with a fake HSA that does not know such memory, as before ROCm 7.1, and with one that
 * does.
 */

static const struct pier_backend *const backend = &pier_hip_backend;

enum {
	SEGMENT = 2 << 20
};

static uint64_t number(const void *pointer)
{
	return (uint64_t)(uintptr_t)pointer;
}

static void expect_kind(const struct pier_memory *memory, const char *kind)
{
	struct pier_memory_facts facts = { .kind = "" };

	backend->describe(memory, &facts);
	assert_string_equal(facts.kind, kind);
	assert_string_equal(facts.unit, "1");
}

static void finds_segments(void **state)
{
	char *address = fixture_map(1, SEGMENT, 3, 4);
	struct pier_memory memory;
	uint64_t start, length;

	(void)state;
	/* As many as requested. */
	expect_ok(call_find(backend, number(address) + 5, SEGMENT - 5, &memory));
	assert_int_equal(memory.address, number(address));
	assert_int_equal(memory.length, SEGMENT);
	expect_kind(&memory, "hipMemMap");
	backend->release(&memory);

	expect_ok(call_find(backend, number(address) + SEGMENT + 5, SEGMENT, &memory));
	assert_int_equal(memory.address, number(address) + SEGMENT);
	assert_int_equal(memory.length, 2 * SEGMENT);
	expect_kind(&memory, "hipMemMap, 2 segments");
	expect_ok(backend->segment(&memory, number(address) + 2 * SEGMENT + 7, &start,
				   &length));
	assert_int_equal(start, number(address) + 2 * SEGMENT);
	assert_int_equal(length, SEGMENT);
	expect_result(
		backend->segment(&memory, number(address) + 3 * SEGMENT, &start, &length),
		-EFAULT);
	test_assert_sentence("nothing is mapped at");
	backend->release(&memory);

	/* As many as there are. */
	expect_ok(call_find(backend, number(address), 4 * SEGMENT, &memory));
	assert_int_equal(memory.length, 3 * SEGMENT);
	backend->release(&memory);
	expect_ok(call_find(backend, number(address), UINT64_MAX, &memory));
	assert_int_equal(memory.length, SEGMENT);
	backend->release(&memory);
	fixture_unmap(address, SEGMENT, 3, 4);
}

/* It ends at memory of another device, or memory not from hipMemMap(). */
static void does_not_join_unlike_segments(void **state)
{
	char *address = fixture_map(1, SEGMENT, 2, 4);
	struct pier_memory memory;

	(void)state;
	assert_true(fixture.map(0, address + 2 * SEGMENT, SEGMENT));
	expect_ok(call_find(backend, number(address), 3 * SEGMENT, &memory));
	assert_int_equal(memory.length, 2 * SEGMENT);
	backend->release(&memory);
	fixture.set_type(address + SEGMENT, 1);
	expect_ok(call_find(backend, number(address), 3 * SEGMENT, &memory));
	assert_int_equal(memory.length, SEGMENT);
	backend->release(&memory);
	fixture_unmap(address, SEGMENT, 3, 4);
}

static void exports_each_segment(void **state)
{
	char *address = fixture_map(1, SEGMENT, 3, 3);
	static const enum pier_mapping mappings[] = { PIER_MAPPING_DEFAULT,
						      PIER_MAPPING_PCIE };
	struct pier_backend_export dmabuf = { .fd = -1 };
	struct pier_memory memory;

	(void)state;
	memcpy(fixture.reach(address + SEGMENT + 4096, 6), "second", 6);
	expect_ok(call_find(backend, number(address), 3 * SEGMENT, &memory));
	for (int i = 0; i < 2; i++) {
		expect_ok(call_export(backend, &memory, number(address) + SEGMENT + 4096,
				      4096, mappings[i], &dmabuf));
		assert_int_equal(dmabuf.offset, 4096);
		fixture_expect_bytes(dmabuf.fd, dmabuf.offset, "second", 6);
		backend->close_export(&dmabuf);
	}
	expect_result(call_export(backend, &memory, number(address) + SEGMENT,
				  2 * SEGMENT, PIER_MAPPING_DEFAULT, &dmabuf),
		      -EXDEV);
	test_assert_sentence("several of 3 segments of hipMemMap: export each alone");
	backend->release(&memory);
	fixture_unmap(address, SEGMENT, 3, 3);
}

static void reports_refusals(void **state)
{
	static const struct {
		unsigned int status;
		int error;
		const char *sentence;
	} cases[] = {
		{ 0x100D, EINVAL, "was imported, and only the process that created it" },
		{ 0x1008, ENOMEM, "for want of file descriptors (ulimit -n)" },
		{ 0x1003, EOPNOTSUPP, "does not export memory of this kind" },
	};
	char *address = fixture_map(1, SEGMENT, 1, 1);
	struct pier_backend_export dmabuf = { .fd = -1 };
	struct pier_memory memory;
	size_t references = fixture.fake->references;

	(void)state;
	expect_ok(call_find(backend, number(address), SEGMENT, &memory));
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		fixture_fail("hsa_amd_vmem_export_shareable_handle", cases[i].status);
		expect_result(call_export(backend, &memory, number(address), SEGMENT,
					  PIER_MAPPING_DEFAULT, &dmabuf),
			      -cases[i].error);
		test_assert_sentence(cases[i].sentence);
		assert_int_equal(dmabuf.fd, -1);
		assert_int_equal(fixture.fake->references, references);
	}
	backend->release(&memory);
	fixture_unmap(address, SEGMENT, 1, 1);
}

/* HSA may know the owner of the reservation only, which is a CPU. */
static void flushes_the_device(void **state)
{
	char *address = fixture_map(1, SEGMENT, 1, 1);
	struct pier_memory memory;

	(void)state;
	fixture.fake->registers[1] = 0;
	expect_ok(call_find(backend, number(address), SEGMENT, &memory));
	expect_ok(call_flush(backend, &memory));
	assert_int_equal(fixture.fake->registers[1], 1);
	backend->release(&memory);
	fixture_unmap(address, SEGMENT, 1, 1);
}

/* Through the public calls, across the seams. */
static void copies_across_seams(void **state)
{
	static char bytes[SEGMENT + 8192], back[sizeof(bytes)];
	char *address = fixture_map(1, SEGMENT, 3, 3);
	struct pier_buffer *buffer;

	(void)state;
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (char)(i * 13);
	expect_ok(pier_buffer_wrap(address, 3 * SEGMENT, &buffer));
	expect_ok(pier_buffer_copy_to(buffer, SEGMENT - 4096, bytes, sizeof(bytes)));
	expect_ok(pier_buffer_copy_from(buffer, SEGMENT - 4096, back, sizeof(back)));
	assert_memory_equal(back, bytes, sizeof(bytes));
	assert_memory_equal(fixture.reach(address + SEGMENT - 4096, 4096), bytes, 4096);
	assert_memory_equal(fixture.reach(address + 2 * SEGMENT, 4096),
			    bytes + SEGMENT + 4096, 4096);
	/* Unmapped in the meantime: not a byte behind it is copied. */
	fixture.unmap(address + SEGMENT);
	expect_result(pier_buffer_copy_to(buffer, SEGMENT - 4096, bytes, sizeof(bytes)),
		      -EFAULT);
	test_assert_sentence("nothing is mapped at");
	assert_true(fixture.map(1, address + SEGMENT, SEGMENT));
	expect_ok(pier_buffer_free(buffer));
	fixture_unmap(address, SEGMENT, 3, 3);
}

/* One region, with a part for each segment. */
static void registers_a_part_for_each_segment(void **state)
{
	char *address = fixture_map(1, SEGMENT, 3, 3);
	struct pier_buffer *buffer;
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_mr *region;

	(void)state;
	expect_ok(pier_device_open("soft0", &device));
	expect_ok(pier_pd_alloc(device, &pd));
	expect_ok(pier_buffer_wrap(address, 3 * SEGMENT, &buffer));
	expect_ok(pier_mr_reg_buffer(pd, buffer, 4096, 2 * SEGMENT, PIER_ACCESS_SHARED,
				     PIER_POLICY_ANY, &region));
	assert_int_equal(pier_mr_path(region), PIER_PATH_DMABUF);
	assert_int_equal(pier_mr_parts(region), 3);
	expect_ok(pier_mr_dereg(region));
	expect_ok(pier_buffer_free(buffer));
	expect_ok(pier_pd_dealloc(pd));
	expect_ok(pier_device_close(device));
	fixture_unmap(address, SEGMENT, 3, 3);
}

static int before_with_newer_hsa(void **state)
{
	fixture.fake->reserved = false;
	return fixture_before(state);
}

#define TEST(function)                                                        \
	fixture_test(function),                                               \
	{                                                                     \
#function "_with_newer_hsa", function, before_with_newer_hsa, \
			fixture_after, NULL                                   \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(finds_segments),
		TEST(does_not_join_unlike_segments),
		TEST(exports_each_segment),
		TEST(reports_refusals),
		TEST(flushes_the_device),
		TEST(copies_across_seams),
		TEST(registers_a_part_for_each_segment),
	};

	return cmocka_run_group_tests(tests, fixture_open, NULL);
}
