/* SPDX-License-Identifier: BSD-3-Clause */
/* Pointers that others allocated: owner, kind, and bounds. */
#include "cuda_fixture.h"

#include <sys/mman.h>

static CUcontext contexts[2]; /* of the application; none is current */

static int setup(void **state)
{
	CUcontext popped;

	fixture_setup(state);
	for (int i = 0; i < 2; i++) {
		contexts[i] = fixture_context(i);
		assert_int_equal(app.cuCtxPopCurrent_v2(&popped), CUDA_SUCCESS);
	}
	return 0;
}

static int teardown(void **state)
{
	for (int i = 0; i < 2; i++)
		fixture_destroy(contexts[i]);
	return fixture_teardown(state);
}

static void push(int device)
{
	assert_int_equal(app.cuCtxPushCurrent_v2(contexts[device]), CUDA_SUCCESS);
}

static void pop(void)
{
	CUcontext popped;

	assert_int_equal(app.cuCtxPopCurrent_v2(&popped), CUDA_SUCCESS);
}

static void assert_facts(const struct pier_memory *memory, const char *kind,
			 const char *unit, bool host, const char *no_export)
{
	struct pier_memory_facts facts = { 0 };

	cuda->describe(memory, &facts);
	assert_string_equal(facts.kind, kind);
	assert_string_equal(facts.unit, unit);
	assert_int_equal(facts.host, host);
	if (!no_export)
		assert_string_equal(facts.no_export, "");
	else if (!strstr(facts.no_export, no_export))
		fail_msg("\"%s\" is not in: %s", no_export, facts.no_export);
}

/* Like the export of the page around the start of the memory. */
static void assert_not_exported(const struct pier_memory *memory, const char *sentence)
{
	struct pier_backend_export dmabuf = { .fd = -1 };
	uint64_t page = pier_host_page();

	expect_result(call_export(cuda, memory, memory->address & ~(page - 1), page,
				  PIER_MAPPING_DEFAULT, &dmabuf),
		      -EOPNOTSUPP);
	test_assert_sentence(sentence);
	assert_int_equal(dmabuf.fd, -1);
}

/* The result matches the application's memory, and copies reach it. */
static void assert_reaches(const struct pier_memory *memory, uint64_t address)
{
	uint64_t offset = address - memory->address;
	char in[8] = "reached", out[8];

	expect_ok(cuda->copy_to(memory, offset, in, sizeof(in)));
	assert_int_equal(app.control->read(address, out, sizeof(out)), 0);
	assert_memory_equal(in, out, sizeof(in));
	memset(out, 0, sizeof(out));
	expect_ok(cuda->copy_from(memory, offset, out, sizeof(out)));
	assert_memory_equal(in, out, sizeof(in));
}

/* A tensor in the middle of a cached block of PyTorch. */
static void finds_interior_pointers(void **state)
{
	uint64_t block = fixture_alloc(contexts[1], 20 * FIXTURE_MIB);
	uint64_t live = app.control->live[FAKE_CUDA_DEVICE_MEMORY];
	struct pier_memory memory;

	(void)state;
	expect_ok(call_find(cuda, block + 3 * FIXTURE_MIB + 513, 1000, &memory));
	assert_int_equal(memory.address, block);
	assert_int_equal(memory.length, 20 * FIXTURE_MIB);
	assert_null(memory.cpu);
	assert_facts(&memory, "cuMemAlloc", "1", false, NULL);
	assert_reaches(&memory, block + 3 * FIXTURE_MIB + 513);
	assert_null(fixture_current());
	cuda->release(&memory);
	/* The application must free it. */
	assert_int_equal(app.control->live[FAKE_CUDA_DEVICE_MEMORY], live);
	fixture_free(contexts[1], block);
}

/* Small allocations share a page: the page belongs to both. */
static void finds_small_allocations(void **state)
{
	uint64_t a = fixture_alloc(contexts[0], 1000),
		 b = fixture_alloc(contexts[0], 1000);
	uint64_t page = pier_host_page();
	struct pier_memory memory;

	(void)state;
	assert_int_not_equal(b % page, 0);
	expect_ok(call_find(cuda, b + 500, 500, &memory));
	assert_int_equal(memory.address, b & ~(page - 1));
	assert_int_equal(memory.length % page, 0);
	assert_true(memory.address + memory.length >= b + 1000);
	assert_reaches(&memory, b + 500);
	cuda->release(&memory);
	/*
	 * A range that leaves the allocation is refused with its bounds, not those of
	 * pages.
	 */
	expect_ok(call_find(cuda, b + 500, 501, &memory));
	assert_int_equal(memory.address, b);
	assert_int_equal(memory.length, 1000);
	cuda->release(&memory);
	fixture_free(contexts[0], b);
	fixture_free(contexts[0], a);
}

static void finds_memory_of_pools(void **state)
{
	struct pier_memory memory;
	CUdeviceptr address;

	(void)state;
	push(1);
	assert_int_equal(app.cuMemAllocAsync(&address, 4 * FIXTURE_MIB, NULL),
			 CUDA_SUCCESS);
	pop();
	expect_ok(call_find(cuda, address + 5, 6, &memory));
	assert_int_equal(memory.address, address);
	assert_int_equal(memory.length, 4 * FIXTURE_MIB);
	assert_facts(&memory, "stream-ordered pool", "1", false, NULL);
	assert_not_exported(&memory, "stream-ordered pool: allocate it with cudaMalloc");
	assert_reaches(&memory, address + 7);
	cuda->release(&memory);
	push(1);
	assert_int_equal(app.cuMemFreeAsync(address, NULL), CUDA_SUCCESS);
	pop();
}

/* In the middle of a page it is refused because of its kind, not its place. */
static void check_small(uint64_t address, uint64_t length, const char *sentence)
{
	struct pier_dmabuf dmabuf;
	struct pier_buffer *buffer;
	struct pier_memory memory;

	expect_ok(call_find(cuda, address, length, &memory));
	assert_reaches(&memory, address);
	cuda->release(&memory);
	expect_ok(pier_buffer_wrap((void *)(uintptr_t)address, length, &buffer));
	expect_result(pier_dmabuf_export(buffer, 0, length, PIER_MAPPING_AUTO, &dmabuf),
		      -EOPNOTSUPP);
	test_assert_sentence(sentence);
	expect_ok(pier_buffer_free(buffer));
}

static void finds_small_memory_of_other_kinds(void **state)
{
	CUdeviceptr pool, managed;

	(void)state;
	push(1);
	assert_int_equal(app.cuMemAllocAsync(&pool, 1000, NULL), CUDA_SUCCESS);
	assert_int_equal(app.cuMemAllocManaged(&managed, 1000, 1), CUDA_SUCCESS);
	pop();
	check_small(pool, 1000, "stream-ordered pool");
	check_small(managed, 1000, "managed memory");
	push(1);
	assert_int_equal(app.cuMemFreeAsync(pool, NULL), CUDA_SUCCESS);
	assert_int_equal(app.cuMemFree_v2(managed), CUDA_SUCCESS);
	pop();
}

static void finds_managed_memory(void **state)
{
	struct pier_memory memory;
	CUdeviceptr address;

	(void)state;
	push(0);
	assert_int_equal(app.cuMemAllocManaged(&address, 4 * FIXTURE_MIB, 1),
			 CUDA_SUCCESS);
	pop();
	expect_ok(call_find(cuda, address + 5, 6, &memory));
	assert_int_equal(memory.address, address);
	assert_int_equal(memory.length, 4 * FIXTURE_MIB);
	/* The CPU can reach it, but no NIC may use the address: its pages move. */
	assert_null(memory.cpu);
	assert_facts(&memory, "managed memory", "0", false, "managed memory");
	assert_not_exported(&memory, "managed memory");
	assert_reaches(&memory, address + 7);
	cuda->release(&memory);
	fixture_free(contexts[0], address);
}

/* Such pools have no handle types, and a driver may die of the question. */
static void never_asks_for_exports_of_managed_memory(void **state)
{
	uint64_t asked =
		fake_cuda_call(app.control, "cuMemGetHandleForAddressRange")->calls;
	struct pier_memory memory;
	CUdeviceptr addresses[2];

	(void)state;
	app.control->managed_pools = true;
	push(1);
	assert_int_equal(app.cuMemAllocAsync(&addresses[0], 4 * FIXTURE_MIB, NULL),
			 CUDA_SUCCESS);
	assert_int_equal(app.cuMemAllocManaged(&addresses[1], 4 * FIXTURE_MIB, 1),
			 CUDA_SUCCESS);
	pop();
	for (int i = 0; i < 2; i++) {
		expect_ok(call_find(cuda, addresses[i] + 5, 6, &memory));
		assert_facts(&memory, "managed memory", "1", false, "has no dma-bufs");
		assert_not_exported(&memory, "has no dma-bufs");
		assert_reaches(&memory, addresses[i] + 7);
		cuda->release(&memory);
		fixture_free(contexts[1], addresses[i]);
	}
	expect_ok(cuda->alloc("1:pool", 1, &memory));
	assert_facts(&memory, "managed memory", "1", false, "has no dma-bufs");
	assert_not_exported(&memory, "has no dma-bufs");
	cuda->free(&memory);
	assert_int_equal(
		fake_cuda_call(app.control, "cuMemGetHandleForAddressRange")->calls,
		asked);
	app.control->managed_pools = false;
}

/* The driver decides whether it exports memory of pools, and is asked. */
static void exports_pools_if_the_driver_does(void **state)
{
	struct pier_backend_export dmabuf = { .fd = -1 };
	struct pier_memory memory;
	CUdeviceptr address;

	(void)state;
	app.control->device[1].every_kind = true;
	push(1);
	assert_int_equal(app.cuMemAllocAsync(&address, 4 * FIXTURE_MIB, NULL),
			 CUDA_SUCCESS);
	expect_ok(call_find(cuda, address, 1, &memory));
	expect_ok(call_export(cuda, &memory, memory.address, pier_host_page(),
			      PIER_MAPPING_DEFAULT, &dmabuf));
	cuda->close_export(&dmabuf);
	cuda->release(&memory);
	assert_int_equal(app.cuMemFree_v2(address), CUDA_SUCCESS);
	pop();
}

static void finds_host_memory(void **state)
{
	struct pier_memory memory;
	void *host;

	(void)state;
	push(1);
	assert_int_equal(app.cuMemHostAlloc(&host, 10000, 0), CUDA_SUCCESS);
	expect_ok(call_find(cuda, (uint64_t)(uintptr_t)host + 5000, 5000, &memory));
	assert_int_equal(memory.address, (uint64_t)(uintptr_t)host);
	assert_true(memory.length >= 10000);
	assert_ptr_equal(memory.cpu, host);
	assert_facts(&memory, "page-locked host", "1", true, NULL);
	assert_reaches(&memory, memory.address + 9000);
	assert_memory_equal((char *)host + 9000, "reached", 8);
	cuda->release(&memory);
	assert_int_equal(app.cuMemFreeHost(host), CUDA_SUCCESS);
	pop();
}

static void finds_registered_memory(void **state)
{
	char *block = aligned_alloc(pier_host_page(), 4 * pier_host_page());
	char *plain = block + 16; /* as of malloc() */
	struct pier_memory memory;

	(void)state;
	assert_non_null(block);
	expect_result(call_find(cuda, (uint64_t)(uintptr_t)plain, 1, &memory), -ENOENT);
	push(0);
	assert_int_equal(app.cuMemHostRegister_v2(plain, 10000, 0), CUDA_SUCCESS);
	expect_ok(call_find(cuda, (uint64_t)(uintptr_t)plain + 10, 20, &memory));
	assert_int_equal(memory.address, (uint64_t)(uintptr_t)plain);
	assert_int_equal(memory.length, 10000);
	assert_ptr_equal(memory.cpu, plain);
	assert_facts(&memory, "page-locked host", "0", true, NULL);
	assert_not_exported(&memory, "by its CPU address");
	assert_reaches(&memory, memory.address + 9000);
	cuda->release(&memory);
	assert_int_equal(app.cuMemHostUnregister(plain), CUDA_SUCCESS);
	pop();
	expect_result(call_find(cuda, (uint64_t)(uintptr_t)plain, 1, &memory), -ENOENT);
	free(block);
}

/* Without the bounds it is ordinary memory of the application, not a mistake. */
static void wraps_registered_memory_without_bounds(void **state)
{
	char *plain = malloc(10000);
	struct pier_buffer *buffer;
	struct pier_memory memory;

	(void)state;
	assert_non_null(plain);
	push(0);
	app.control->no_host_ranges = true;
	assert_int_equal(app.cuMemHostRegister_v2(plain, 10000, 0), CUDA_SUCCESS);
	expect_result(call_find(cuda, (uint64_t)(uintptr_t)plain + 10, 20, &memory),
		      -ENOENT);
	expect_ok(pier_buffer_wrap(plain + 10, 20, &buffer));
	assert_string_equal(test_buffer_info(buffer).backend, "host");
	expect_ok(pier_buffer_free(buffer));
	assert_int_equal(app.cuMemHostUnregister(plain), CUDA_SUCCESS);
	pop();
	free(plain);
}

/* A piece of an array is registered: the array can be wrapped as before. */
static void wraps_memory_around_a_registered_piece(void **state)
{
	uint64_t page = pier_host_page();
	char *plain = aligned_alloc(page, 4 * page);
	uint64_t piece = (uint64_t)(uintptr_t)plain + page;
	struct pier_buffer *buffer;
	struct pier_memory memory;

	(void)state;
	assert_non_null(plain);
	push(0);
	assert_int_equal(app.cuMemHostRegister_v2(plain + page, page, 0), CUDA_SUCCESS);
	for (uint64_t at = 0; at < 3; at++) {
		expect_ok(pier_buffer_wrap(plain + at * page, (4 - at) * page, &buffer));
		assert_string_equal(test_buffer_info(buffer).backend, "host");
		expect_ok(pier_buffer_free(buffer));
	}
	expect_result(call_find(cuda, piece + 1, page, &memory), -ENOENT);
	expect_result(call_find(cuda, piece, UINT64_MAX, &memory), -ENOENT);
	expect_ok(call_find(cuda, piece + 1, page - 1, &memory));
	assert_facts(&memory, "page-locked host", "0", true, NULL);
	cuda->release(&memory);
	assert_int_equal(app.cuMemHostUnregister(plain + page), CUDA_SUCCESS);
	pop();
	free(plain);
}

/* Expandable segments: as many as requested and present. */
static void finds_segments(void **state)
{
	struct fixture_vmm range = fixture_map(1, FIXTURE_BLOCK, 4, true);
	uint64_t second = range.address + FIXTURE_BLOCK, start, length;
	struct pier_memory memory;

	(void)state;
	expect_ok(call_find(cuda, second + 100, 1, &memory));
	assert_int_equal(memory.address, second);
	assert_int_equal(memory.length, FIXTURE_BLOCK);
	assert_facts(&memory, "VMM", "1", false, NULL);
	cuda->release(&memory);

	expect_ok(call_find(cuda, second + 100, FIXTURE_BLOCK, &memory));
	assert_int_equal(memory.address, second);
	assert_int_equal(memory.length, 2 * FIXTURE_BLOCK);
	assert_facts(&memory, "VMM, 2 segments", "1", false, NULL);
	assert_reaches(&memory, second + FIXTURE_BLOCK - 4);
	expect_ok(cuda->segment(&memory, second + FIXTURE_BLOCK + 7, &start, &length));
	assert_int_equal(start, second + FIXTURE_BLOCK);
	assert_int_equal(length, FIXTURE_BLOCK);
	cuda->release(&memory);

	/* Past the end of the mapping: the caller's mistake. */
	expect_ok(call_find(cuda, second, 4 * FIXTURE_BLOCK, &memory));
	assert_int_equal(memory.length, 3 * FIXTURE_BLOCK);
	cuda->release(&memory);
	expect_ok(call_find(cuda, second, UINT64_MAX, &memory));
	assert_int_equal(memory.length, 3 * FIXTURE_BLOCK);
	cuda->release(&memory);
	fixture_unmap(&range);
}

/* As driver 535 on a P100: cuMemGetAddressRange() does not find live mappings. */
static void finds_mappings_that_one_query_does_not(void **state)
{
	struct fixture_vmm range = fixture_map(1, FIXTURE_BLOCK, 2, true);
	struct fake_cuda_call *query = fake_cuda_call(app.control,
						      "cuMemGetAddressRange");
	struct pier_backend_export dmabuf = { .fd = -1 };
	uint64_t start, length;
	struct pier_memory memory;

	(void)state;
	query->fail_result = CUDA_ERROR_NOT_FOUND;
	query->fail_in = 1;
	query->fail_more = 1000;
	expect_ok(call_find(cuda, range.address + 100, FIXTURE_BLOCK, &memory));
	assert_int_equal(memory.address, range.address);
	assert_int_equal(memory.length, 2 * FIXTURE_BLOCK);
	assert_facts(&memory, "VMM, 2 segments", "1", false, NULL);
	expect_ok(cuda->segment(&memory, range.address + FIXTURE_BLOCK, &start, &length));
	assert_int_equal(start, range.address + FIXTURE_BLOCK);
	assert_int_equal(length, FIXTURE_BLOCK);
	expect_ok(call_export(cuda, &memory, range.address, pier_host_page(),
			      PIER_MAPPING_DEFAULT, &dmabuf));
	cuda->close_export(&dmabuf);
	cuda->release(&memory);
	/* Without the attributes (CUDA 11.3) the error is in the sentence. */
	app.control->version = 11020;
	expect_result(call_find(cuda, range.address, 1, &memory), -EINVAL);
	test_assert_sentence("cuMemGetAddressRange: CUDA_ERROR_NOT_FOUND");
	query->fail_in = 0;
	app.control->version = 13000;
	fixture_unmap(&range);
}

/* Adjacent segments that differ are not joined: another device, another flag, a hole. */
static void does_not_join_unlike_segments(void **state)
{
	struct fixture_vmm range = fixture_map(0, FIXTURE_BLOCK, 4, true);
	uint64_t at = range.address;
	struct pier_memory memory;

	(void)state;
	assert_int_equal(app.cuMemUnmap(at + FIXTURE_BLOCK, FIXTURE_BLOCK), CUDA_SUCCESS);
	fixture_map_one(at + FIXTURE_BLOCK, FIXTURE_BLOCK, 1, true);
	assert_int_equal(app.cuMemUnmap(at + 3 * FIXTURE_BLOCK, FIXTURE_BLOCK),
			 CUDA_SUCCESS);
	expect_ok(call_find(cuda, at, range.length, &memory));
	assert_int_equal(memory.length, FIXTURE_BLOCK);
	cuda->release(&memory);
	expect_ok(call_find(cuda, at + FIXTURE_BLOCK, FIXTURE_BLOCK + 1, &memory));
	assert_facts(&memory, "VMM", "1", false, NULL);
	assert_int_equal(memory.length, FIXTURE_BLOCK);
	cuda->release(&memory);
	expect_ok(call_find(cuda, at + 2 * FIXTURE_BLOCK, FIXTURE_BLOCK + 1, &memory));
	assert_int_equal(memory.length, FIXTURE_BLOCK);
	cuda->release(&memory);
	/* Reserved, with nothing mapped. */
	expect_result(call_find(cuda, at + 3 * FIXTURE_BLOCK, 1, &memory), -ENOENT);
	fixture_map_one(at + 3 * FIXTURE_BLOCK, FIXTURE_BLOCK, 0, false);
	expect_ok(call_find(cuda, at + 2 * FIXTURE_BLOCK, FIXTURE_BLOCK + 1, &memory));
	assert_int_equal(memory.length, FIXTURE_BLOCK);
	cuda->release(&memory);
	expect_ok(call_find(cuda, at + 3 * FIXTURE_BLOCK, 1, &memory));
	assert_facts(&memory, "VMM", "0", false, NULL);
	assert_not_exported(&memory, "gpuDirectRDMACapable");
	cuda->release(&memory);
	fixture_unmap(&range);
}

/* cuMemSetAccess() for the CPU: of the host, or of one of its nodes. */
static void grant(uint64_t address, uint64_t length, unsigned int type)
{
	CUmemAccessDesc access = {
		.location = { type, 0 },
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};

	assert_int_equal(app.cuMemSetAccess(address, length, &access, 1), CUDA_SUCCESS);
}

/* cuMemCreate() memory on the host is host memory if the CPU was granted access. */
static void check_vmm_on_host(unsigned int type)
{
	struct fixture_vmm range = fixture_map_on(type, FIXTURE_BLOCK, 3);
	struct pier_memory memory;

	expect_ok(call_find(cuda, range.address, range.length, &memory));
	assert_null(memory.cpu);
	assert_facts(&memory, "VMM on the host, 3 segments", "0", true, "cuMemSetAccess");
	assert_not_exported(&memory, "cuMemSetAccess");
	cuda->release(&memory);

	grant(range.address, 2 * FIXTURE_BLOCK, type);
	expect_ok(call_find(cuda, range.address + 5, range.length - 5, &memory));
	assert_ptr_equal(memory.cpu, (void *)(uintptr_t)range.address);
	/* Memory that the CPU cannot reach is not joined with memory that it can. */
	assert_int_equal(memory.length, 2 * FIXTURE_BLOCK);
	assert_facts(&memory, "VMM on the host, 2 segments", "0", true, NULL);
	assert_reaches(&memory, range.address + FIXTURE_BLOCK - 4);
	assert_memory_equal((char *)memory.cpu + FIXTURE_BLOCK - 4, "reached", 8);
	expect_ok(call_flush(cuda, &memory));
	cuda->release(&memory);
	/* If access cannot be queried, it counts as missing. */
	fixture_fail("cuMemGetAccess", CUDA_ERROR_NOT_SUPPORTED);
	fake_cuda_call(app.control, "cuMemGetAccess")->fail_more = 100;
	expect_ok(call_find(cuda, range.address, 1, &memory));
	assert_null(memory.cpu);
	cuda->release(&memory);
	app.control->restore();
	fixture_unmap(&range);
}

static void finds_vmm_memory_on_the_host(void **state)
{
	(void)state;
	check_vmm_on_host(CU_MEM_LOCATION_TYPE_HOST);
	check_vmm_on_host(CU_MEM_LOCATION_TYPE_HOST_NUMA);
}

static void ignores_foreign_memory(void **state)
{
	static char data[64];
	struct pier_memory memory;
	uint64_t identity, freed;
	char stack;

	(void)state;
	expect_result(call_find(cuda, (uint64_t)(uintptr_t)data, 1, &memory), -ENOENT);
	expect_result(call_find(cuda, (uint64_t)(uintptr_t)&stack, 1, &memory), -ENOENT);
	expect_result(call_find(cuda, 1, 1, &memory), -ENOENT);
	expect_result(call_find(cuda, UINT64_MAX, 1, &memory), -ENOENT);
	expect_result(cuda->identity((uint64_t)(uintptr_t)data, &identity), -ENOENT);
	freed = fixture_alloc(contexts[0], 3 * FIXTURE_MIB);
	fixture_free(contexts[0], freed);
	expect_result(call_find(cuda, freed, 1, &memory), -ENOENT);
	expect_result(cuda->identity(freed, &identity), -ENOENT);
}

/* The same address, allocated anew. */
static void identifies_allocations(void **state)
{
	uint64_t address = fixture_alloc(contexts[0], 3 * FIXTURE_MIB), again, first,
		 second;
	struct fixture_vmm range = fixture_map(0, FIXTURE_BLOCK, 2, true);

	(void)state;
	expect_ok(cuda->identity(address + 5, &first));
	expect_ok(cuda->identity(address + 3 * FIXTURE_MIB - 1, &second));
	assert_int_equal(first, second);
	fixture_free(contexts[0], address);
	again = fixture_alloc(contexts[0], 3 * FIXTURE_MIB);
	assert_int_equal(again, address);
	expect_ok(cuda->identity(address, &second));
	assert_int_not_equal(first, second);
	fixture_free(contexts[0], address);

	/* Another piece of memory in the same reservation. */
	expect_ok(cuda->identity(range.address, &first));
	assert_int_equal(app.cuMemUnmap(range.address, FIXTURE_BLOCK), CUDA_SUCCESS);
	fixture_map_one(range.address, FIXTURE_BLOCK, 0, true);
	expect_ok(cuda->identity(range.address, &second));
	assert_int_not_equal(first, second);
	fixture_unmap(&range);
}

/* Through the public calls: owners, bounds, and memory that is not CUDA's. */
static void wraps_memory_of_the_application(void **state)
{
	uint64_t address = fixture_alloc(contexts[1], 3 * FIXTURE_MIB);
	struct pier_buffer *buffer;
	char plain[16];

	(void)state;
	expect_ok(pier_buffer_wrap((void *)(uintptr_t)(address + 1), 3 * FIXTURE_MIB - 1,
				   &buffer));
	assert_string_equal(test_buffer_info(buffer).backend, "cuda");
	assert_int_equal(pier_buffer_address(buffer), address + 1);
	expect_ok(pier_buffer_free(buffer));
	expect_result(pier_buffer_wrap((void *)(uintptr_t)(address + 1), 3 * FIXTURE_MIB,
				       &buffer),
		      -ERANGE);
	test_assert_sentence("leave their allocation of cuda");
	expect_ok(pier_buffer_wrap(plain, sizeof(plain), &buffer));
	assert_string_equal(test_buffer_info(buffer).backend, "host");
	expect_ok(pier_buffer_free(buffer));
	fixture_free(contexts[1], address);
}

/* The context of the allocation, neither the primary one nor that of the thread. */
static void uses_the_context_of_the_allocation(void **state)
{
	uint64_t address = fixture_alloc(contexts[1], 3 * FIXTURE_MIB);
	struct pier_memory memory;

	(void)state;
	push(0);
	expect_ok(call_find(cuda, address, 1, &memory));
	assert_reaches(&memory, address);
	assert_ptr_equal(fixture_current(), contexts[0]);
	cuda->release(&memory);
	pop();
	fixture_free(contexts[1], address);
}

/*
 * If the driver knows a pointer and then fails, the memory is not taken for host memory.
 */
static void reports_failures_of_the_driver(void **state)
{
	static const char *const calls[] = { "cuCtxPushCurrent",
					     "cuPointerGetAttribute" };
	uint64_t address = fixture_alloc(contexts[0], 3 * FIXTURE_MIB);
	struct fake_cuda_call *range;
	struct pier_memory memory;

	(void)state;
	fixture_fail(calls[0], 999);
	expect_result(call_find(cuda, address, 1, &memory), -EIO);
	test_assert_sentence("cuCtxPushCurrent");
	fixture_fail(calls[1], 1);
	fake_cuda_call(app.control, calls[1])->fail_more = 100;
	range = fake_cuda_call(app.control, "cuMemGetAddressRange");
	range->fail_in = 1;
	range->fail_result = 500;
	expect_result(call_find(cuda, address, 1, &memory), -EINVAL);
	test_assert_sentence("no allocation around it (cuMemGetAddressRange: "
			     "CUDA_ERROR_NOT_FOUND");
	assert_null(fixture_current());
	app.control->restore();
	fixture_free(contexts[0], address);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		CASE(finds_interior_pointers),
		CASE(finds_small_allocations),
		CASE(finds_memory_of_pools),
		CASE(finds_managed_memory),
		CASE(never_asks_for_exports_of_managed_memory),
		CASE(finds_mappings_that_one_query_does_not),
		CASE(exports_pools_if_the_driver_does),
		CASE(finds_host_memory),
		CASE(wraps_registered_memory_without_bounds),
		CASE(finds_registered_memory),
		CASE(finds_segments),
		CASE(does_not_join_unlike_segments),
		CASE(finds_vmm_memory_on_the_host),
		CASE(finds_small_memory_of_other_kinds),
		CASE(wraps_memory_around_a_registered_piece),
		CASE(ignores_foreign_memory),
		CASE(identifies_allocations),
		CASE(wraps_memory_of_the_application),
		CASE(uses_the_context_of_the_allocation),
		CASE(reports_failures_of_the_driver),
	};

	return cmocka_run_group_tests(tests, fixture_begin, NULL);
}
