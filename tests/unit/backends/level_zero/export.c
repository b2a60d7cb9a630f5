/* SPDX-License-Identifier: BSD-3-Clause */
#include "level_zero_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* Exporting memory, pier's own and an application's. */

static const struct pier_backend *const backend = &pier_level_zero_backend;

static int export(const struct pier_memory *memory, uint64_t offset, uint64_t length,
		  struct pier_backend_export *ret_export)
{
	return call_export(backend, memory, memory->address + offset, length,
			   PIER_MAPPING_DEFAULT, ret_export);
}

static void expect_refused(const struct pier_memory *memory, const char *sentence)
{
	struct pier_backend_export dmabuf;

	expect_result(export(memory, 0, 4096, &dmabuf), -EOPNOTSUPP);
	test_assert_sentence(sentence);
}

static struct pier_memory find(const void *pointer)
{
	struct pier_memory memory;

	expect_ok(call_find(backend, (uint64_t)(uintptr_t)pointer, 1, &memory));
	return memory;
}

static void range_is_at_its_offset(void **state)
{
	struct pier_memory memory = { .size = sizeof(memory) };
	struct pier_backend_export dmabuf;
	char *mapped;

	(void)state;
	expect_ok(backend->alloc("0", 1 << 20, &memory));
	expect_ok(backend->copy_to(&memory, 3 * 4096, "bytes", 6));
	expect_ok(export(&memory, 3 * 4096, 4096, &dmabuf));
	assert_int_equal(dmabuf.offset, 3 * 4096);
	assert_int_equal(fcntl(dmabuf.fd, F_GETFD), FD_CLOEXEC);
	mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, dmabuf.fd,
		      (off_t)dmabuf.offset);
	assert_ptr_not_equal(mapped, MAP_FAILED);
	assert_string_equal(mapped, "bytes");
	munmap(mapped, 4096);
	backend->close_export(&dmabuf);
	backend->free(&memory);
}

/* The driver has one fd, which it closes with the memory; an export outlives that. */
static void exports_are_duplicates(void **state)
{
	struct pier_memory memory = { .size = sizeof(memory) };
	struct pier_backend_export first, second;
	struct stat before, after;

	(void)state;
	expect_ok(backend->alloc("1", 8192, &memory));
	expect_ok(export(&memory, 0, 8192, &first));
	expect_ok(export(&memory, 4096, 4096, &second));
	assert_int_equal(fixture.fake->fds, 1);
	backend->close_export(&first);
	assert_int_equal(fstat(second.fd, &before), 0);
	backend->free(&memory);
	assert_int_equal(fixture.fake->fds, 0);
	assert_int_equal(fstat(second.fd, &after), 0);
	assert_int_equal(before.st_ino, after.st_ino);
	backend->close_export(&second);
}

static void application_memory_is_exported(void **state)
{
	char *pointer = fixture_alloc(10000, true);
	struct pier_memory memory = find(pointer + 9000);
	struct pier_backend_export dmabuf;

	(void)state;
	/* The driver reports 10000 bytes, and the export is of pages. */
	expect_ok(export(&memory, 8192, 4096, &dmabuf));
	assert_int_equal(dmabuf.offset, 8192);
	backend->close_export(&dmabuf);
	backend->release(&memory);
	fixture_free(pointer);
}

static void memory_not_for_export_is_refused(void **state)
{
	char *pointer = fixture_alloc(4096, false);
	struct pier_memory memory = find(pointer);

	(void)state;
	expect_refused(&memory, "allocate it with ze_external_memory_export_desc_t and "
				"ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF");
	backend->release(&memory);
	fixture_free(pointer);
}

/* Its offset in the pool's dma-buf is unknown, and the pool's first piece has none. */
static void piece_of_a_pool_is_refused(void **state)
{
	struct pier_backend_export dmabuf;
	struct pier_memory memory;
	char *first, *second;

	(void)state;
	fixture.fake->pools = true;
	first = fixture_alloc(100, false);
	second = fixture_alloc(100, false);
	memory = find(second);
	assert_int_equal(memory.address, (uint64_t)(uintptr_t)second);
	expect_refused(&memory, "is a piece of the driver's pool");
	assert_int_equal(fixture.fake->fds, 0);
	backend->release(&memory);
	memory = find(first);
	expect_ok(export(&memory, 0, 4096, &dmabuf));
	assert_int_equal(dmabuf.offset, 0);
	backend->close_export(&dmabuf);
	backend->release(&memory);
	fixture_free(first);
	fixture_free(second);
}

static void memory_of_several_tiles_is_refused(void **state)
{
	struct pier_memory memory = { .size = sizeof(memory) };
	struct pier_backend_export dmabuf;

	(void)state;
	fixture.fake->tiles = true;
	expect_ok(backend->alloc("0", 128 << 10, &memory));
	expect_result(export(&memory, 64 << 10, 4096, &dmabuf), -EOPNOTSUPP);
	test_assert_sentence("the dma-buf has 65536 bytes, and 4096 at 65536 were asked "
			     "for: the memory is spread over the tiles");
	test_assert_sentence("ZE_FLAT_DEVICE_HIERARCHY=FLAT");
	expect_result(export(&memory, 0, 128 << 10, &dmabuf), -EOPNOTSUPP);
	backend->free(&memory);
}

static void other_kinds_are_refused(void **state)
{
	struct pier_memory memory = { .size = sizeof(memory) };
	struct pier_backend_export dmabuf;

	(void)state;
	expect_ok(backend->alloc("0:shared", 4096, &memory));
	expect_refused(&memory, "its pages move");
	backend->free(&memory);
	expect_ok(backend->alloc("0:host", 4096, &memory));
	expect_refused(&memory, "host memory, which is registered by its address");
	backend->free(&memory);
	expect_ok(backend->alloc("0", 4096, &memory));
	expect_result(call_export(backend, &memory, memory.address, 4096,
				  PIER_MAPPING_PCIE, &dmabuf),
		      -EOPNOTSUPP);
	test_assert_sentence("no choice of mappings");
	backend->free(&memory);
}

static void driver_failure_is_reported(void **state)
{
	struct pier_memory memory = { .size = sizeof(memory) };
	struct pier_backend_export dmabuf;

	(void)state;
	expect_ok(backend->alloc("0", 4096, &memory));
	fixture_fail("zeMemGetAllocProperties", 0x70000002);
	expect_result(export(&memory, 0, 4096, &dmabuf), -ENOMEM);
	test_assert_sentence("exporting the memory at 0x");
	backend->free(&memory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		fixture_test(range_is_at_its_offset),
		fixture_test(exports_are_duplicates),
		fixture_test(application_memory_is_exported),
		fixture_test(memory_not_for_export_is_refused),
		fixture_test(piece_of_a_pool_is_refused),
		fixture_test(memory_of_several_tiles_is_refused),
		fixture_test(other_kinds_are_refused),
		fixture_test(driver_failure_is_reported),
	};

	return cmocka_run_group_tests_name("level_zero_export", tests, fixture_start,
					   fixture_stop);
}
