/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda_fixture.h"

struct fake_cuda_calls app;

/* The state that a test must leave unchanged. */
static struct {
	struct test_census census;
	uint64_t live[FAKE_CUDA_KINDS];
} before;

/* pier need not release primary contexts: they are kept for the process. */
static bool is_kept(int kind)
{
	return kind == FAKE_CUDA_PRIMARY;
}

int fixture_begin(void **state)
{
	(void)state;
	assert_true(fake_cuda_load(&app));
	assert_int_equal(app.cuInit(0), CUDA_SUCCESS);
	return 0;
}

int fixture_setup(void **state)
{
	struct pier_memory memory;

	(void)state;
	app.control->restore();
	/* A context counts once, however often it is retained. */
	for (int i = 0; i < (int)app.control->devices; i++) {
		char unit[16];

		snprintf(unit, sizeof(unit), "%d", i);
		expect_ok(cuda->alloc(unit, 1, &memory));
		cuda->free(&memory);
	}
	before.census = test_take_census();
	for (int kind = 0; kind < FAKE_CUDA_KINDS; kind++)
		before.live[kind] = app.control->live[kind];
	assert_int_equal(app.control->current, 0);
	return 0;
}

int fixture_teardown(void **state)
{
	(void)state;
	test_assert_census(&before.census);
	for (int kind = 0; kind < FAKE_CUDA_KINDS; kind++) {
		if (app.control->live[kind] != before.live[kind] && !is_kept(kind))
			fail_msg("%d of kind %d, and %d before",
				 (int)app.control->live[kind], kind,
				 (int)before.live[kind]);
	}
	/* No context stays current, in this thread or another. */
	assert_int_equal(app.control->current, 0);
	assert_int_equal(app.control->abandoned, 0);
	return 0;
}

CUcontext fixture_context(int device)
{
	CUcontext context;

	assert_int_equal(app.cuCtxCreate_v2(&context, 0, device), CUDA_SUCCESS);
	return context;
}

void fixture_destroy(CUcontext context)
{
	assert_int_equal(app.cuCtxDestroy_v2(context), CUDA_SUCCESS);
}

CUcontext fixture_current(void)
{
	CUcontext context = NULL;

	assert_int_equal(app.cuCtxGetCurrent(&context), CUDA_SUCCESS);
	return context;
}

/* On the device, or on the first one if the memory is on the host. */
static void map_one(uint64_t address, uint64_t length, CUmemLocation location, bool rdma)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = location,
	};
	CUmemAccessDesc access = {
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, location.id },
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	CUmemGenericAllocationHandle handle;

	prop.allocFlags.gpuDirectRDMACapable = rdma;
	assert_int_equal(app.cuMemCreate(&handle, length, &prop, 0), CUDA_SUCCESS);
	assert_int_equal(app.cuMemMap(address, length, 0, handle, 0), CUDA_SUCCESS);
	assert_int_equal(app.cuMemRelease(handle), CUDA_SUCCESS);
	assert_int_equal(app.cuMemSetAccess(address, length, &access, 1), CUDA_SUCCESS);
}

void fixture_map_one(uint64_t address, uint64_t length, int device, bool rdma)
{
	map_one(address, length, (CUmemLocation){ CU_MEM_LOCATION_TYPE_DEVICE, device },
		rdma);
}

static struct fixture_vmm map_on(CUmemLocation location, uint64_t segment, uint32_t count,
				 bool rdma)
{
	struct fixture_vmm range = { .length = segment * count, .segment = segment };
	CUdeviceptr address;

	assert_int_equal(app.cuMemAddressReserve(&address, range.length, 0, 0, 0),
			 CUDA_SUCCESS);
	range.address = address;
	for (uint32_t i = 0; i < count; i++)
		map_one(address + i * segment, segment, location, rdma);
	return range;
}

struct fixture_vmm fixture_map(int device, uint64_t segment, uint32_t count, bool rdma)
{
	return map_on((CUmemLocation){ CU_MEM_LOCATION_TYPE_DEVICE, device }, segment,
		      count, rdma);
}

struct fixture_vmm fixture_map_on(unsigned int location, uint64_t segment, uint32_t count)
{
	return map_on((CUmemLocation){ location, 0 }, segment, count, false);
}

void fixture_unmap(const struct fixture_vmm *range)
{
	for (uint64_t at = 0; at < range->length; at += range->segment)
		assert_int_equal(app.cuMemUnmap(range->address + at, range->segment),
				 CUDA_SUCCESS);
	assert_int_equal(app.cuMemAddressFree(range->address, range->length),
			 CUDA_SUCCESS);
}

uint64_t fixture_alloc(CUcontext context, uint64_t length)
{
	CUdeviceptr address;
	CUcontext popped;

	assert_int_equal(app.cuCtxPushCurrent_v2(context), CUDA_SUCCESS);
	assert_int_equal(app.cuMemAlloc_v2(&address, length), CUDA_SUCCESS);
	assert_int_equal(app.cuCtxPopCurrent_v2(&popped), CUDA_SUCCESS);
	return address;
}

void fixture_free(CUcontext context, uint64_t address)
{
	CUcontext popped;

	assert_int_equal(app.cuCtxPushCurrent_v2(context), CUDA_SUCCESS);
	assert_int_equal(app.cuMemFree_v2(address), CUDA_SUCCESS);
	assert_int_equal(app.cuCtxPopCurrent_v2(&popped), CUDA_SUCCESS);
}

void fixture_fail(const char *name, int result)
{
	struct fake_cuda_call *call = fake_cuda_call(app.control, name);

	assert_non_null(call);
	call->fail_in = 1;
	call->fail_result = result;
}
