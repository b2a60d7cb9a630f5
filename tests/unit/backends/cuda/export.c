/* SPDX-License-Identifier: BSD-3-Clause */
/* Exports: the range requested, the mapping used, and each refusal. */
#include "cuda_fixture.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum {
	SCHED_BLOCKING_SYNC = 4, /* CU_CTX_SCHED_BLOCKING_SYNC */
};

static CUcontext context; /* of the application on device 1; not current */

static int setup(void **state)
{
	CUcontext popped;

	fixture_setup(state);
	context = fixture_context(1);
	assert_int_equal(app.cuCtxPopCurrent_v2(&popped), CUDA_SUCCESS);
	return 0;
}

static int teardown(void **state)
{
	fixture_destroy(context);
	return fixture_teardown(state);
}

/* The export has, at that offset, the bytes of the address. */
static void assert_same_bytes(const struct pier_backend_export *dmabuf, uint64_t address,
			      uint64_t length)
{
	char *mapped = mmap(NULL, dmabuf->offset + length, PROT_READ | PROT_WRITE,
			    MAP_SHARED, dmabuf->fd, 0);
	char seen[16];

	assert_ptr_not_equal(mapped, MAP_FAILED);
	memcpy(mapped + dmabuf->offset + length - sizeof(seen), "what a NIC wrote", 16);
	assert_int_equal(
		app.control->read(address + length - sizeof(seen), seen, sizeof(seen)),
		0);
	assert_memory_equal(seen, "what a NIC wrote", sizeof(seen));
	munmap(mapped, dmabuf->offset + length);
}

static void check_export(const struct pier_memory *memory, uint64_t address,
			 uint64_t length, uint64_t offset)
{
	struct pier_backend_export dmabuf = { .fd = -1 };

	expect_ok(call_export(cuda, memory, address, length, PIER_MAPPING_DEFAULT,
			      &dmabuf));
	assert_true(dmabuf.fd >= 0);
	assert_int_equal(fcntl(dmabuf.fd, F_GETFD), FD_CLOEXEC);
	assert_int_equal(dmabuf.offset, offset);
	assert_same_bytes(&dmabuf, address, length);
	assert_null(fixture_current());
	cuda->close_export(&dmabuf);
	assert_int_equal(dmabuf.fd, -1);
}

static void expect_refusal(const struct pier_memory *memory, uint64_t address,
			   uint64_t length, int error, const char *sentence)
{
	struct pier_backend_export dmabuf = { .fd = -1 };

	expect_result(
		call_export(cuda, memory, address, length, PIER_MAPPING_DEFAULT, &dmabuf),
		error);
	test_assert_sentence(sentence);
	assert_int_equal(dmabuf.fd, -1);
	assert_null(fixture_current());
}

static void exports_its_own_memory(void **state)
{
	static const char *const units[] = { "0", "1", "0:vmm", "1:vmm:2M", "1:host" };
	struct pier_memory memory;

	(void)state;
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		expect_ok(cuda->alloc(units[i], 1, &memory));
		check_export(&memory, memory.address, pier_host_page(), 0);
		check_export(&memory, memory.address, memory.length, 0);
		cuda->free(&memory);
	}
}

/* A part is exported as such, or from the base if only that is accepted. */
static void exports_parts(void **state)
{
	uint64_t base = fixture_alloc(context, 4 * FIXTURE_MIB), page = pier_host_page();
	struct fake_cuda_call *call;
	struct pier_memory memory;

	(void)state;
	call = fake_cuda_call(app.control, "cuMemGetHandleForAddressRange");
	app.control->device[1].ranges = FAKE_CUDA_RANGES_BASE;
	expect_ok(call_find(cuda, base, 1, &memory));
	check_export(&memory, base, page, 0);
	assert_int_equal(call->calls, 1);
	check_export(&memory, base + 3 * page, page, 3 * page);
	assert_int_equal(call->calls, 3);
	app.control->device[1].ranges = FAKE_CUDA_RANGES_WHOLE;
	check_export(&memory, base + 3 * page, page, 3 * page);
	check_export(&memory, base, page, 0);
	check_export(&memory, base, 4 * FIXTURE_MIB, 0);
	cuda->release(&memory);
	fixture_free(context, base);
}

/* If any part is accepted, no more than that is exported. */
static void exports_no_more_than_requested(void **state)
{
	uint64_t base = fixture_alloc(context, 4 * FIXTURE_MIB), page = pier_host_page();
	struct pier_backend_export dmabuf = { .fd = -1 };
	uint64_t exports = app.control->exports;
	struct pier_memory memory;
	struct stat status;

	(void)state;
	app.control->windows = FAKE_CUDA_WINDOWS_COPIED;
	expect_ok(call_find(cuda, base, 1, &memory));
	expect_ok(call_export(cuda, &memory, base + 3 * page, 2 * page,
			      PIER_MAPPING_DEFAULT, &dmabuf));
	assert_int_equal(dmabuf.offset, 0);
	assert_int_equal(fstat(dmabuf.fd, &status), 0);
	assert_int_equal(status.st_size, 2 * page);
	assert_int_equal(app.control->exports, exports + 1);
	cuda->close_export(&dmabuf);
	cuda->release(&memory);
	fixture_free(context, base);
}

/* A small allocation in the middle of a page, beside others. */
static void exports_small_allocations(void **state)
{
	uint64_t a = fixture_alloc(context, 600), b = fixture_alloc(context, 600);
	uint64_t page = pier_host_page();
	struct pier_backend_export dmabuf = { .fd = -1 };
	struct pier_memory memory;

	(void)state;
	assert_int_not_equal(b % page, 0);
	expect_ok(call_find(cuda, b, 600, &memory));
	expect_ok(call_export(cuda, &memory, b & ~(page - 1), page, PIER_MAPPING_DEFAULT,
			      &dmabuf));
	assert_int_equal(dmabuf.offset, 0);
	/* The range as it would be registered: offset in the page, and length. */
	dmabuf.offset = b % page;
	assert_same_bytes(&dmabuf, b, 600);
	cuda->close_export(&dmabuf);
	cuda->release(&memory);
	fixture_free(context, a);
	fixture_free(context, b);
}

static void refuses_ranges_across_seams(void **state)
{
	struct fixture_vmm range = fixture_map(1, FIXTURE_BLOCK, 3, true);
	struct pier_backend_export dmabuf = { .fd = -1 };
	uint64_t start, length, page = pier_host_page();
	struct pier_memory memory;
	struct stat status;

	(void)state;
	expect_ok(call_find(cuda, range.address, range.length, &memory));
	expect_refusal(&memory, range.address, range.length, -EXDEV,
		       "several of 3 segments");
	expect_refusal(&memory, range.address + FIXTURE_BLOCK - page, 2 * page, -EXDEV,
		       "several of 3 segments");
	for (uint64_t at = range.address; at < range.address + range.length;
	     at = start + length) {
		expect_ok(cuda->segment(&memory, at + 9, &start, &length));
		assert_int_equal(start, at);
		check_export(&memory, start, length, 0);
	}
	/* A part of one segment is refused for being a part, not for a seam. */
	app.control->device[1].ranges = FAKE_CUDA_RANGES_WHOLE;
	check_export(&memory, range.address + FIXTURE_BLOCK + page, page, page);
	app.control->device[1].ranges = FAKE_CUDA_RANGES_ANY;
	/* A driver that joins segments. */
	app.control->device[1].seams = FAKE_CUDA_SEAMS_JOINED;
	app.control->windows = FAKE_CUDA_WINDOWS_COPIED;
	expect_ok(call_export(cuda, &memory, range.address, range.length,
			      PIER_MAPPING_DEFAULT, &dmabuf));
	assert_int_equal(fstat(dmabuf.fd, &status), 0);
	assert_int_equal(status.st_size, range.length);
	cuda->close_export(&dmabuf);
	cuda->release(&memory);
	fixture_unmap(&range);
}

/* pier's own segments, through the public calls for memory with seams. */
static void exports_its_own_segments(void **state)
{
	struct pier_memory memory;
	uint64_t start, length;

	(void)state;
	expect_ok(cuda->alloc("0:vmm:2M", 5 * FIXTURE_MIB, &memory));
	expect_refusal(&memory, memory.address, memory.length, -EXDEV, "3 segments");
	expect_ok(cuda->segment(&memory, memory.address + 5 * FIXTURE_MIB, &start,
				&length));
	assert_int_equal(start, memory.address + 4 * FIXTURE_MIB);
	assert_int_equal(length, FIXTURE_BLOCK);
	check_export(&memory, start, length, 0);
	cuda->free(&memory);
}

static void uses_the_requested_mapping(void **state)
{
	struct pier_backend_export dmabuf = { .fd = -1 };
	struct pier_memory memory;

	(void)state;
	expect_ok(cuda->alloc("0", 1, &memory));
	expect_ok(call_export(cuda, &memory, memory.address, memory.length,
			      PIER_MAPPING_DEFAULT, &dmabuf));
	cuda->close_export(&dmabuf);
	assert_int_equal(app.control->pcie_exports, 0);
	expect_ok(call_export(cuda, &memory, memory.address, memory.length,
			      PIER_MAPPING_PCIE, &dmabuf));
	assert_int_equal(app.control->pcie_exports, 1);
	cuda->close_export(&dmabuf);
	app.control->device[0].pcie = FAKE_CUDA_PCIE_REFUSED;
	expect_result(call_export(cuda, &memory, memory.address, memory.length,
				  PIER_MAPPING_PCIE, &dmabuf),
		      -EOPNOTSUPP);
	test_assert_sentence("mapped over PCIe");
	assert_int_equal(dmabuf.fd, -1);
	cuda->free(&memory);
}

static bool sync_memops(uint64_t address)
{
	unsigned int on = 0;

	assert_int_equal(
		app.cuPointerGetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address),
		CUDA_SUCCESS);
	return on;
}

/*
 * The context of the allocation; for cuMemCreate() memory, one that keeps its other
 * flags.
 */
static void makes_the_context_synchronous(void **state)
{
	uint64_t address = fixture_alloc(context, 4 * FIXTURE_MIB),
		 page = pier_host_page();
	struct fake_cuda_call *set = fake_cuda_call(app.control, "cuPointerSetAttribute");
	unsigned int flags = 0;
	CUcontext primary;
	struct pier_memory memory;
	int active;

	(void)state;
	expect_ok(call_find(cuda, address, 1, &memory));
	assert_false(sync_memops(address));
	check_export(&memory, address, page, 0);
	assert_true(sync_memops(address + 5));
	assert_int_equal(set->calls, 1);
	check_export(&memory, address, page, 0);
	assert_int_equal(set->calls, 1);
	cuda->release(&memory);
	fixture_free(context, address);

	assert_int_equal(app.cuDevicePrimaryCtxRetain(&primary, 0), CUDA_SUCCESS);
	assert_int_equal(app.cuCtxPushCurrent_v2(primary), CUDA_SUCCESS);
	assert_int_equal(app.cuCtxSetFlags(SCHED_BLOCKING_SYNC), CUDA_SUCCESS);
	assert_int_equal(app.cuCtxPopCurrent_v2(&primary), CUDA_SUCCESS);
	expect_ok(cuda->alloc("0:vmm", 1, &memory));
	check_export(&memory, memory.address, page, 0);
	cuda->free(&memory);
	assert_int_equal(app.cuDevicePrimaryCtxGetState(0, &flags, &active),
			 CUDA_SUCCESS);
	assert_int_equal(flags, SCHED_BLOCKING_SYNC | CU_CTX_SYNC_MEMOPS);
	assert_int_equal(app.cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
}

static void reports_missing_dmabuf_support(void **state)
{
	struct pier_memory_facts facts = { 0 };
	struct pier_memory memory, other;

	(void)state;
	app.control->device[1].dmabuf = false;
	app.control->device[1].host_dmabuf = false;
	expect_ok(cuda->alloc("1", 1, &memory));
	expect_refusal(&memory, memory.address, memory.length, -EOPNOTSUPP,
		       "CUDA device 1 exports no dma-bufs");
	cuda->describe(&memory, &facts);
	assert_non_null(strstr(facts.no_export, "open kernel modules"));
	/* Each device is queried separately. */
	expect_ok(cuda->alloc("0", 1, &other));
	check_export(&other, other.address, other.length, 0);
	cuda->free(&other);
	cuda->free(&memory);
	expect_ok(cuda->alloc("1:host", 1, &memory));
	expect_refusal(&memory, memory.address, memory.length, -EOPNOTSUPP,
		       "no page-locked host memory");
	cuda->free(&memory);
}

/*
 * BAR1 has room for one of two. Closing an export does not release its room; freeing the
 * memory does.
 */
static void reports_a_full_bar1(void **state)
{
	struct pier_memory first, second;

	(void)state;
	app.control->device[0].static_bar = true;
	app.control->device[0].bar = 3 * FIXTURE_MIB;
	expect_ok(cuda->alloc("0", 2 * FIXTURE_MIB, &first));
	expect_ok(cuda->alloc("0", 2 * FIXTURE_MIB, &second));
	check_export(&first, first.address, first.length, 0);
	expect_refusal(&second, second.address, second.length, -ENOMEM, "BAR1");
	cuda->free(&first);
	check_export(&second, second.address, second.length, 0);
	cuda->free(&second);
}

/* Freed after it was wrapped, with new memory or nothing at the address. */
static void refuses_freed_memory(void **state)
{
	uint64_t address = fixture_alloc(context, 4 * FIXTURE_MIB), again;
	struct pier_memory memory;

	(void)state;
	expect_ok(call_find(cuda, address, 1, &memory));
	fixture_free(context, address);
	expect_refusal(&memory, address, pier_host_page(), -EINVAL, "was freed");
	again = fixture_alloc(context, 4 * FIXTURE_MIB);
	assert_int_equal(again, address);
	expect_refusal(&memory, address, pier_host_page(), -EINVAL, "was freed");
	cuda->release(&memory);
	fixture_free(context, again);
}

/* Freed memory cannot be detected, and nothing is refused for that reason. */
static void works_without_allocation_ids(void **state)
{
	struct fixture_vmm range = fixture_map(1, FIXTURE_BLOCK, 1, true);
	struct pier_memory memory;
	char byte = 1;

	(void)state;
	app.control->no_mapping_ids = true;
	expect_ok(call_find(cuda, range.address, 1, &memory));
	check_export(&memory, range.address, FIXTURE_BLOCK, 0);
	expect_ok(cuda->copy_to(&memory, 0, &byte, 1));
	expect_ok(cuda->expose(&memory));
	cuda->release(&memory);
	fixture_unmap(&range);
}

static void reports_failures_of_the_driver(void **state)
{
	static const struct {
		int result, error;
	} cases[] = {
		{ 1, -EINVAL },	 { 2, -ENOMEM },       { 46, -ENODEV }, { 201, -EINVAL },
		{ 214, -EIO },	 { 304, -EIO },	       { 700, -EIO },	{ 719, -EIO },
		{ 800, -EPERM }, { 801, -EOPNOTSUPP }, { 999, -EIO },	{ 12345, -EIO },
	};
	struct pier_backend_export dmabuf = { .fd = -1 };
	struct pier_memory memory;

	(void)state;
	expect_ok(cuda->alloc("0", 1, &memory));
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		fixture_fail("cuMemGetHandleForAddressRange", cases[i].result);
		expect_result(call_export(cuda, &memory, memory.address, memory.length,
					  PIER_MAPPING_DEFAULT, &dmabuf),
			      cases[i].error);
		assert_null(fixture_current());
	}
	test_assert_sentence("error 12345 of the CUDA driver");
	fixture_fail("cuCtxPushCurrent", 201);
	expect_refusal(&memory, memory.address, memory.length, -EINVAL,
		       "CUDA_ERROR_INVALID_CONTEXT");
	cuda->free(&memory);
}

static void flushes_if_the_device_requires_it(void **state)
{
	static const struct {
		int ordering, options, result;
		uint64_t flushes;
	} cases[] = {
		{ 0, 0, PIER_BACKEND_READ_BACK, 0 },
		{ 0, 2, PIER_BACKEND_READ_BACK, 0 },
		{ 0, 1, 0, 1 },
		{ 0, 3, 0, 1 },
		{ 100, 0, 0, 0 },
		{ 100, 1, 0, 0 },
		{ 200, 0, 0, 0 },
	};
	struct pier_memory memory;

	(void)state;
	expect_ok(cuda->alloc("1:vmm", 1, &memory));
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		app.control->device[1].ordering = cases[i].ordering;
		app.control->device[1].flush_options = cases[i].options;
		app.control->flushes = 0;
		expect_result(call_flush_once(cuda, &memory, PIER_MAPPING_DEFAULT, false),
			      cases[i].result);
		assert_int_equal(app.control->flushes, cases[i].flushes);
		expect_ok(call_flush(cuda, &memory));
		/* C2C: whatever the attributes report. */
		expect_result(call_flush_once(cuda, &memory, PIER_MAPPING_PCIE, false),
			      PIER_BACKEND_READ_BACK);
		expect_ok(call_flush_once(cuda, &memory, PIER_MAPPING_PCIE, true));
		assert_null(fixture_current());
	}
	app.control->device[1].ordering = 0;
	app.control->device[1].flush_options = 1;
	fixture_fail("cuFlushGPUDirectRDMAWrites", 719);
	expect_result(call_flush(cuda, &memory), -EIO);
	test_assert_sentence("restart the process");
	cuda->free(&memory);
	/* The CPU's own memory needs none. */
	app.control->device[1].flush_options = 0;
	expect_ok(cuda->alloc("1:host", 1, &memory));
	expect_ok(call_flush(cuda, &memory));
	cuda->free(&memory);
}

static void locks_host_memory(void **state)
{
	uint64_t page = pier_host_page();
	void *plain = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t before = app.control->live[FAKE_CUDA_REGISTERED];
	struct pier_memory memory;

	(void)state;
	expect_ok(cuda->alloc("1", 1, &memory));
	expect_ok(cuda->lock_host(&memory, plain, 4 * page));
	assert_int_equal(app.control->live[FAKE_CUDA_REGISTERED], before + 1);
	expect_result(cuda->lock_host(&memory, plain, page), -EEXIST);
	test_assert_sentence("cuMemHostRegister");
	cuda->unlock_host(&memory, plain);
	assert_int_equal(app.control->live[FAKE_CUDA_REGISTERED], before);
	assert_null(fixture_current());
	cuda->free(&memory);
	munmap(plain, 4 * page);
}

static void reports_a_lost_device(void **state)
{
	static const struct {
		int result, error;
	} cases[] = { { 46, -ENODEV }, { 214, -EIO }, { 999, -EIO } };
	struct pier_backend_export dmabuf = { .fd = -1 };
	struct pier_memory memory, other;
	char byte = 1;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		expect_ok(cuda->alloc("0", 1, &memory));
		app.control->device[0].lost_in = 1;
		app.control->device[0].lost_result = cases[i].result;
		expect_result(cuda->copy_to(&memory, 0, &byte, 1), cases[i].error);
		test_assert_sentence("copying 1 bytes to");
		expect_result(cuda->copy_from(&memory, 0, &byte, 1), cases[i].error);
		expect_result(call_export(cuda, &memory, memory.address, memory.length,
					  PIER_MAPPING_DEFAULT, &dmabuf),
			      cases[i].error);
		assert_int_equal(dmabuf.fd, -1);
		expect_result(cuda->alloc("0", 1, &other), cases[i].error);
		/* The other device still works. */
		expect_ok(cuda->alloc("1", 1, &other));
		expect_ok(cuda->copy_to(&other, 0, &byte, 1));
		cuda->free(&other);
		assert_null(fixture_current());
		/* Restore the device, so that the fake ends empty. */
		app.control->device[0].lost_in = 0;
		cuda->free(&memory);
	}
	/* Lost while freeing: no context stays current. */
	expect_ok(cuda->alloc("0:vmm:2M", 5 * FIXTURE_MIB, &memory));
	app.control->device[0].lost_in = 1;
	cuda->free(&memory);
	assert_null(fixture_current());
}

/* Copies of pageable memory are complete when they return. */
static void copies_are_complete_on_return(void **state)
{
	struct fake_cuda_call *wait;
	struct pier_memory memory;
	uint64_t calls;
	char byte = 1;

	(void)state;
	expect_ok(cuda->alloc("0", 1, &memory));
	wait = fake_cuda_call(app.control, "cuStreamSynchronize");
	calls = wait->calls;
	expect_ok(cuda->copy_to(&memory, 0, &byte, 1));
	assert_int_equal(wait->calls, calls + 1);
	fixture_fail("cuStreamSynchronize", 700);
	expect_result(cuda->copy_to(&memory, 0, &byte, 1), -EIO);
	test_assert_sentence("CUDA_ERROR_ILLEGAL_ADDRESS");
	cuda->free(&memory);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		CASE(exports_its_own_memory),
		CASE(exports_parts),
		CASE(exports_no_more_than_requested),
		CASE(exports_small_allocations),
		CASE(refuses_ranges_across_seams),
		CASE(exports_its_own_segments),
		CASE(uses_the_requested_mapping),
		CASE(makes_the_context_synchronous),
		CASE(reports_missing_dmabuf_support),
		CASE(reports_a_full_bar1),
		CASE(refuses_freed_memory),
		CASE(reports_failures_of_the_driver),
		CASE(flushes_if_the_device_requires_it),
		CASE(locks_host_memory),
		CASE(reports_a_lost_device),
		CASE(copies_are_complete_on_return),
		CASE(works_without_allocation_ids),
	};

	return cmocka_run_group_tests(tests, fixture_begin, NULL);
}
