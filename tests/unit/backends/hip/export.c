/* SPDX-License-Identifier: BSD-3-Clause */
#include "hip_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <pier/buffer.h>
#include <pier/device.h>
#include <pier/mr.h>

/* Exports: dma-bufs, their offsets, and every refusal. */

static const struct pier_backend *const backend = &pier_hip_backend;

enum {
	SMALL = 64 << 10, /* part of a memory object that the driver keeps for several
			     allocations */
	LARGE = 5 << 20,
};

/*
 * Bytes copied to `offset` of the memory are in the dma-buf where the export of pages
 * from `start` on reports them.
 */
static void check_offset(const struct pier_memory *memory, uint64_t start,
			 uint64_t offset)
{
	struct pier_backend_export dmabuf = { .fd = -1 };
	size_t before = test_count_fds();
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	char mark[24], none[24] = "";

	snprintf(mark, sizeof(mark), "%llx", (unsigned long long)(start ^ offset) | 1);
	expect_ok(backend->copy_to(memory, offset, mark, sizeof(mark)));
	expect_ok(call_export(backend, memory, memory->address + start, page,
			      PIER_MAPPING_DEFAULT, &dmabuf));
	assert_int_equal(test_count_fds(), before + 1);
	assert_int_equal(fcntl(dmabuf.fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
	assert_int_equal(dmabuf.offset % page, 0);
	fixture_expect_bytes(dmabuf.fd, dmabuf.offset + (offset - start), mark,
			     sizeof(mark));
	backend->close_export(&dmabuf);
	assert_int_equal(test_count_fds(), before);
	expect_ok(backend->copy_to(memory, offset, none, sizeof(none)));
}

/* Interior pages of memory that is itself in the middle of the driver's memory. */
static void applies_the_offset_once(void **state)
{
	static const uint64_t sizes[] = { SMALL, LARGE };
	size_t before = fixture.fake->exports;

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		struct pier_memory first, memory;

		expect_ok(backend->alloc("0", 3 * 4096, &first));
		expect_ok(backend->alloc("0", sizes[i], &memory));
		check_offset(&memory, 0, 0);
		check_offset(&memory, 0, 100);
		check_offset(&memory, 4096, 4096);
		check_offset(&memory, 7 * 4096, 7 * 4096 + 77);
		check_offset(&memory, sizes[i] - 4096, sizes[i] - 24);
		backend->free(&memory);
		backend->free(&first);
	}
	assert_int_equal(fixture.fake->exports, before + 10);
}

/* The same through the library, which adds its own offsets. */
static void exports_buffers(void **state)
{
	struct pier_buffer *before, *buffer, *wrapped;
	struct pier_dmabuf dmabuf;
	uint64_t address;

	(void)state;
	expect_ok(pier_buffer_alloc("hip:1:fine", 4096, &before));
	expect_ok(pier_buffer_alloc("hip:1:fine", SMALL, &buffer));
	address = pier_buffer_address(buffer);
	expect_ok(pier_buffer_copy_to(buffer, 9000, "direct", 7));
	expect_ok(pier_dmabuf_export(buffer, 9000, 7, PIER_MAPPING_AUTO, &dmabuf));
	assert_int_equal(dmabuf.iova, address + 9000);
	assert_int_equal((dmabuf.offset ^ dmabuf.iova) & 4095, 0);
	fixture_expect_bytes(dmabuf.fd, dmabuf.offset, "direct", 7);
	pier_dmabuf_close(&dmabuf);

	expect_ok(pier_buffer_wrap((void *)(uintptr_t)(address + 8999), 100, &wrapped));
	assert_string_equal(test_buffer_info(wrapped).backend, "hip");
	expect_ok(pier_dmabuf_export(wrapped, 1, 7, PIER_MAPPING_AUTO, &dmabuf));
	fixture_expect_bytes(dmabuf.fd, dmabuf.offset, "direct", 7);
	expect_result(pier_buffer_free(wrapped), -EBUSY);
	pier_dmabuf_close(&dmabuf);
	expect_ok(pier_buffer_free(wrapped));
	expect_ok(pier_buffer_free(buffer));
	expect_ok(pier_buffer_free(before));
}

/* Registered from the dma-buf; the region needs no fd of the backend. */
static void registers_an_export(void **state)
{
	struct pier_device *device;
	struct pier_buffer *buffer;
	struct pier_mr *mr;
	struct pier_pd *pd;

	(void)state;
	expect_ok(pier_device_open("soft0", &device));
	expect_ok(pier_pd_alloc(device, &pd));
	expect_ok(pier_buffer_alloc("hip:1", SMALL, &buffer));
	expect_ok(pier_mr_reg_buffer(pd, buffer, 5000, 3000,
				     PIER_ACCESS_LOCAL_WRITE | PIER_ACCESS_REMOTE_WRITE,
				     PIER_POLICY_DIRECT, &mr));
	assert_int_equal(pier_mr_path(mr), PIER_PATH_DMABUF);
	assert_int_equal(pier_mr_iova(mr), pier_buffer_address(buffer) + 5000);
	assert_int_equal(fixture.fake->exports_open, 0);
	expect_ok(pier_mr_dereg(mr));
	expect_ok(pier_buffer_free(buffer));
	expect_ok(pier_pd_dealloc(pd));
	expect_ok(pier_device_close(device));
}

static void expect_refused(const struct pier_memory *memory, uint64_t address,
			   uint64_t length, enum pier_mapping mapping, int error,
			   const char *sentence)
{
	struct pier_backend_export dmabuf = { .fd = -7 };
	size_t references = fixture.fake->references, fds = test_count_fds();

	expect_result(call_export(backend, memory, address, length, mapping, &dmabuf),
		      -error);
	test_assert_sentence(sentence);
	assert_int_equal(dmabuf.fd, -7);
	assert_int_equal(fixture.fake->references, references);
	assert_int_equal(test_count_fds(), fds);
	assert_int_equal(fixture.hipPeekAtLastError(), 0);
}

static void refuses_invalid_ranges(void **state)
{
	struct pier_memory memory, other;
	void *freed = NULL;

	(void)state;
	expect_ok(backend->alloc("0", SMALL, &memory));
	expect_ok(backend->alloc("0", 4096, &other));
	/* The next allocation follows it directly in the driver's memory. */
	expect_refused(&memory, memory.address, SMALL + 4096, PIER_MAPPING_DEFAULT,
		       ERANGE, "69632 bytes at");
	test_assert_sentence("leave the allocation, which is now 65536 bytes at");
	expect_refused(&memory, memory.address + SMALL - 4096, 8192, PIER_MAPPING_PCIE,
		       ERANGE, "leave the allocation");
	expect_refused(&memory, (uint64_t)(uintptr_t)&memory & ~4095ULL, 4096,
		       PIER_MAPPING_DEFAULT, EFAULT, "it was freed, or never was");
	backend->free(&other);

	assert_int_equal(fixture.hipMalloc(&freed, LARGE), 0);
	expect_ok(call_find(backend, (uint64_t)(uintptr_t)freed, LARGE, &other));
	assert_int_equal(fixture.hipFree(freed), 0);
	expect_refused(&other, other.address, 4096, PIER_MAPPING_DEFAULT, EFAULT,
		       "was freed after it was wrapped: wrap what is there now");
	backend->release(&other);
	backend->free(&memory);
}

static void refuses_other_kinds_of_memory(void **state)
{
	void *managed = NULL, *host = NULL, *other = NULL;
	struct pier_memory memory;
	size_t exports = fixture.fake->exports;

	(void)state;
#define EXPECT_KIND_REFUSED(pointer, sentence)                                           \
	do {                                                                             \
		expect_ok(                                                               \
			call_find(backend, (uint64_t)(uintptr_t)(pointer), 1, &memory)); \
		expect_refused(&memory, memory.address, 4096, PIER_MAPPING_DEFAULT,      \
			       EOPNOTSUPP, sentence);                                    \
		backend->release(&memory);                                               \
	} while (0)
	assert_int_equal(fixture.hipMallocManaged(&managed, 8192, 1), 0);
	EXPECT_KIND_REFUSED(managed, "its pages move");
	test_assert_sentence("or allow a bounce buffer");
	assert_int_equal(fixture.hipFree(managed), 0);

	assert_int_equal(fixture.hipHostMalloc(&host, 8192, 0), 0);
	EXPECT_KIND_REFUSED(host, "it is host memory");
	test_assert_sentence("register it as such");
	assert_int_equal(fixture.hipHostFree(host), 0);

	assert_int_equal(fixture.hipMalloc(&other, 8192), 0);
	fixture.set_type(other, 4);
	EXPECT_KIND_REFUSED(other, "only the process that allocated it");
	assert_int_equal(fixture.hipFree(other), 0);
	assert_int_equal(fixture.fake->exports, exports);
}

/* Of memory that is mapped, HSA knows an allocation by its first address only. */
static void exports_what_a_pool_is_made_of(void **state)
{
	static const char refused[] = "such as a piece of a pool (HSA_STATUS_ERROR_INV";
	struct pier_backend_export dmabuf;
	struct pier_memory memory;
	void *pool[2];

	(void)state;
	assert_int_equal(fixture.hipMallocAsync(&pool[0], SMALL, NULL), 0);
	expect_ok(call_find(backend, (uint64_t)(uintptr_t)pool[0], SMALL, &memory));
	expect_ok(backend->copy_to(&memory, 0, "pool", 4));
	expect_ok(call_export(backend, &memory, memory.address, SMALL, PIER_MAPPING_PCIE,
			      &dmabuf));
	fixture_expect_bytes(dmabuf.fd, dmabuf.offset, "pool", 4);
	backend->close_export(&dmabuf);
	backend->release(&memory);
	assert_int_equal(fixture.hipFree(pool[0]), 0);

	fixture.fake->pools = true;
	for (int i = 0; i < 2; i++) {
		assert_int_equal(fixture.hipMallocAsync(&pool[i], SMALL, NULL), 0);
		expect_ok(
			call_find(backend, (uint64_t)(uintptr_t)pool[i], SMALL, &memory));
		if (i == 0) {
			expect_ok(call_export(backend, &memory, memory.address, SMALL,
					      PIER_MAPPING_DEFAULT, &dmabuf));
			backend->close_export(&dmabuf);
		} else {
			expect_refused(&memory, memory.address, SMALL,
				       PIER_MAPPING_DEFAULT, EOPNOTSUPP, refused);
			test_assert_sentence("or allow a bounce buffer");
		}
		backend->release(&memory);
	}
	assert_int_equal(fixture.hipFree(pool[0]), 0);
	assert_int_equal(fixture.hipFree(pool[1]), 0);
}

static void reports_a_refusal_of_the_driver(void **state)
{
	struct pier_backend_export dmabuf[2];
	struct pier_memory memory;

	(void)state;
	expect_ok(backend->alloc("0", LARGE, &memory));
	fixture.fake->exports_most = 2;
	for (int i = 0; i < 2; i++)
		expect_ok(call_export(backend, &memory, memory.address, LARGE,
				      PIER_MAPPING_DEFAULT, &dmabuf[i]));
	expect_refused(&memory, memory.address, LARGE, PIER_MAPPING_DEFAULT, ENOMEM,
		       "file descriptors (ulimit -n)");
	test_assert_sentence("HSA_STATUS_ERROR_OUT_OF_RESOURCES (0x1008)");
	backend->close_export(&dmabuf[0]);
	backend->close_export(&dmabuf[1]);

	fixture.fake->dmabuf = false;
	expect_refused(&memory, memory.address, LARGE, PIER_MAPPING_DEFAULT, EOPNOTSUPP,
		       "the kernel's amdgpu driver exports no dma-bufs");
	test_assert_sentence("CONFIG_PCI_P2PDMA and CONFIG_DMABUF_MOVE_NOTIFY");
	fixture.fake->dmabuf = true;

	strcpy(fixture.fake->fail_function, "hsa_init");
	fixture.fake->fail_call = 1;
	fixture.fake->fail_error = 1;
	expect_refused(&memory, memory.address, LARGE, PIER_MAPPING_DEFAULT, ENOMEM,
		       "initialising HSA: HSA_STATUS_ERROR_OUT_OF_RESOURCES");

	fixture.fake->lost_call = 1;
	fixture.fake->lost_error = 719;
	expect_refused(&memory, memory.address, LARGE, PIER_MAPPING_DEFAULT, EIO,
		       "HSA_STATUS_ERROR (0x1000)");
	fixture.fake->lost_call = 0;
	backend->free(&memory);
}

static bool is_eventfd(int fd)
{
	char path[32], target[64] = "";

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return readlink(path, target, sizeof(target) - 1) > 0 &&
	       strstr(target, "eventfd");
}

static void uses_the_requested_mapping(void **state)
{
	static const struct {
		enum fake_hip_pcie pcie;
		bool normal, over_pcie;
	} rows[] = {
		{ FAKE_HIP_PCIE_EITHER, true, true },
		{ FAKE_HIP_PCIE_REQUIRED, false, true },
		{ FAKE_HIP_PCIE_WRONG, true, false },
	};
	struct pier_backend_export dmabuf;
	struct pier_memory memory;
	size_t flagged = fixture.fake->pcie_exports;

	(void)state;
	expect_ok(backend->alloc("0", LARGE, &memory));
	for (size_t i = 0; i < 3; i++) {
		fixture.fake->pcie = rows[i].pcie;
		expect_ok(call_export(backend, &memory, memory.address, LARGE,
				      PIER_MAPPING_DEFAULT, &dmabuf));
		assert_int_equal(is_eventfd(dmabuf.fd), !rows[i].normal);
		backend->close_export(&dmabuf);
		assert_int_equal(fixture.fake->pcie_exports, flagged + i);
		expect_ok(call_export(backend, &memory, memory.address, LARGE,
				      PIER_MAPPING_PCIE, &dmabuf));
		assert_int_equal(is_eventfd(dmabuf.fd), !rows[i].over_pcie);
		backend->close_export(&dmabuf);
		assert_int_equal(fixture.fake->pcie_exports, flagged + i + 1);
	}
	fixture.fake->pcie = FAKE_HIP_PCIE_REFUSED;
	expect_refused(&memory, memory.address, LARGE, PIER_MAPPING_PCIE, EOPNOTSUPP,
		       "all of the device's memory behind its BAR");
	backend->free(&memory);
}

/* Each open export holds a reference to HSA; closing the export releases it. */
static void exports_hold_a_reference_to_hsa(void **state)
{
	struct pier_backend_export dmabuf[3];
	struct pier_memory memory;
	size_t before;

	(void)state;
	expect_ok(backend->alloc("0", LARGE, &memory));
	before = fixture.fake->references;
	for (size_t i = 0; i < 3; i++) {
		expect_ok(call_export(backend, &memory, memory.address + i * 4096, 4096,
				      PIER_MAPPING_DEFAULT, &dmabuf[i]));
		assert_int_equal(fixture.fake->references, before + i + 1);
		assert_int_equal(fixture.fake->exports_open, i + 1);
	}
	for (size_t i = 0; i < 3; i++) {
		backend->close_export(&dmabuf[i]);
		assert_int_equal(fixture.fake->exports_open, 2 - i);
		assert_int_equal(fixture.fake->references, before + 2 - i);
	}
	backend->free(&memory);
}

static void *export_often(void *argument)
{
	const struct pier_memory *memory = argument;
	struct pier_backend_export dmabuf;

	for (int i = 0; i < 100; i++) {
		expect_ok(call_export(backend, memory, memory->address + 4096, 4096,
				      PIER_MAPPING_DEFAULT, &dmabuf));
		backend->close_export(&dmabuf);
	}
	return NULL;
}

static void threads_can_export_at_once(void **state)
{
	struct pier_memory memory;
	pthread_t threads[4];

	(void)state;
	expect_ok(backend->alloc("0", SMALL, &memory));
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, export_often, &memory),
				 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	backend->free(&memory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		fixture_test(applies_the_offset_once),
		fixture_test(exports_buffers),
		fixture_test(registers_an_export),
		fixture_test(refuses_invalid_ranges),
		fixture_test(refuses_other_kinds_of_memory),
		fixture_test(exports_what_a_pool_is_made_of),
		fixture_test(reports_a_refusal_of_the_driver),
		fixture_test(uses_the_requested_mapping),
		fixture_test(exports_hold_a_reference_to_hsa),
		fixture_test(threads_can_export_at_once),
	};

	return cmocka_run_group_tests_name("hip_export", tests, fixture_open, NULL);
}
