/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Memory that the application has from the driver itself: pier finds out what it is,
 * copies to and from all of it, and refuses by name what cannot be exported. And what is
 * no memory of CUDA's, or not any more.
 */
#include "../support/cmocka.h"
#include "../support/expect.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "driver.h"

enum {
	LENGTH = GPU_MIB,
	/* A part that begins and ends within pages. */
	SKEW = 12345,
	PART = 70001,
};

struct kind {
	const char *name;
	CUresult (*take)(CUdeviceptr *ret_address);
	CUresult (*give)(CUdeviceptr address);
	const char *kind;	      /* in pier's words */
	const char *refused;	      /* for what; NULL: the driver decides */
	uint64_t length;	      /* of the allocation */
	CUdevice_attribute attribute; /* that the device must have; or 0 */
	bool host;
};

static struct {
	struct pier_device *device;
	struct pier_pd *pd;
} rig;

static CUresult take_linear(CUdeviceptr *ret_address)
{
	return gpu.call.cuMemAlloc(ret_address, 2 * GPU_BLOCK);
}

static CUresult give_linear(CUdeviceptr address)
{
	return gpu.call.cuMemFree(address);
}

static CUresult take_managed(CUdeviceptr *ret_address)
{
	return gpu.more.cuMemAllocManaged(ret_address, LENGTH, GPU_MEM_ATTACH_GLOBAL);
}

static CUresult take_pool(CUdeviceptr *ret_address)
{
	CUresult error = gpu.more.cuMemAllocAsync(ret_address, LENGTH, NULL);

	return error == CUDA_SUCCESS ? gpu.call.cuStreamSynchronize(NULL) : error;
}

static CUresult give_pool(CUdeviceptr address)
{
	CUresult error = gpu.more.cuMemFreeAsync(address, NULL);

	return error == CUDA_SUCCESS ? gpu.call.cuStreamSynchronize(NULL) : error;
}

static CUresult take_host(CUdeviceptr *ret_address)
{
	void *pointer = NULL;
	CUresult error = gpu.call.cuMemHostAlloc(&pointer, LENGTH,
						 CU_MEMHOSTALLOC_PORTABLE);

	*ret_address = (uintptr_t)pointer;
	return error;
}

static CUresult give_host(CUdeviceptr address)
{
	return gpu.call.cuMemFreeHost((void *)(uintptr_t)address);
}

static CUresult take_registered(CUdeviceptr *ret_address)
{
	void *memory = aligned_alloc(65536, LENGTH);

	if (!memory)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memset(memory, 0, LENGTH);
	*ret_address = (uintptr_t)memory;
	return gpu.call.cuMemHostRegister(memory, LENGTH, CU_MEMHOSTREGISTER_PORTABLE);
}

static CUresult give_registered(CUdeviceptr address)
{
	void *memory = (void *)(uintptr_t)address;
	CUresult error = gpu.call.cuMemHostUnregister(memory);

	free(memory);
	return error;
}

static CUresult map_segment(CUdeviceptr address, bool rdma)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, gpu.device },
		.allocFlags.gpuDirectRDMACapable = rdma,
	};
	CUmemAccessDesc access = { prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemGenericAllocationHandle handle;
	CUresult error = gpu.call.cuMemCreate(&handle, GPU_BLOCK, &prop, 0);

	if (error == CUDA_SUCCESS)
		error = gpu.call.cuMemMap(address, GPU_BLOCK, 0, handle, 0);
	if (error == CUDA_SUCCESS)
		error = gpu.call.cuMemRelease(handle);
	return error == CUDA_SUCCESS
		       ? gpu.call.cuMemSetAccess(address, GPU_BLOCK, &access, 1)
		       : error;
}

static CUresult map_two(CUdeviceptr *ret_address, bool rdma)
{
	CUresult error = gpu.call.cuMemAddressReserve(ret_address, 2 * GPU_BLOCK, 0, 0,
						      0);

	if (error == CUDA_SUCCESS)
		error = map_segment(*ret_address, rdma);
	return error == CUDA_SUCCESS ? map_segment(*ret_address + GPU_BLOCK, rdma)
				     : error;
}

static CUresult take_vmm(CUdeviceptr *ret_address)
{
	return map_two(ret_address, true);
}

static CUresult take_vmm_plain(CUdeviceptr *ret_address)
{
	return map_two(ret_address, false);
}

static CUresult give_vmm(CUdeviceptr address)
{
	CUresult error = gpu.call.cuMemUnmap(address, GPU_BLOCK);

	if (error == CUDA_SUCCESS)
		error = gpu.call.cuMemUnmap(address + GPU_BLOCK, GPU_BLOCK);
	return error == CUDA_SUCCESS ? gpu.call.cuMemAddressFree(address, 2 * GPU_BLOCK)
				     : error;
}

static const struct kind kinds[] = {
	{ "cuMemAlloc", take_linear, give_linear, "cuMemAlloc", NULL, 2 * GPU_BLOCK, 0,
	  false },
	{ "cuMemAllocManaged", take_managed, give_linear, "managed memory",
	  "managed memory", LENGTH, GPU_ATTRIBUTE_MANAGED_MEMORY, false },
	{ "cuMemAllocAsync", take_pool, give_pool, "stream-ordered pool",
	  "stream-ordered pool", LENGTH, GPU_ATTRIBUTE_MEMORY_POOLS, false },
	{ "cuMemCreate, two segments", take_vmm, give_vmm, "VMM", NULL, 2 * GPU_BLOCK,
	  CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, false },
	{ "cuMemCreate without gpuDirectRDMACapable", take_vmm_plain, give_vmm, "VMM",
	  "gpuDirectRDMACapable", 2 * GPU_BLOCK,
	  CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, false },
	{ "cuMemHostAlloc", take_host, give_host, "page-locked host", NULL, LENGTH, 0,
	  true },
	{ "cuMemHostRegister", take_registered, give_registered, "registered host",
	  "cuMemHostRegister", LENGTH, 0, true },
};

enum {
	KINDS = sizeof(kinds) / sizeof(kinds[0]),
};

/* Whole, so that both segments are told, but of what pier says of a part. */
static void check_query(const struct kind *kind, CUdeviceptr address)
{
	struct pier_buffer *buffer = NULL;
	struct pier_buffer_info info;
	char unit[16];

	snprintf(unit, sizeof(unit), "%d", gpu.device);
	expect_ok(pier_wrap_pointer((void *)(uintptr_t)address, kind->length, &buffer));
	expect_ok(pier_query_buffer(buffer, &info));
	gpu_say("%s: kind \"%s\", unit %s, PCI %s, allocation %llu bytes from %+lld on; "
		"export: %s",
		kind->name, info.kind, info.unit, info.pci[0] ? info.pci : "none",
		(unsigned long long)info.allocation_length,
		(long long)(info.allocation - address),
		info.no_export[0] ? info.no_export : "not excluded");
	assert_string_equal(info.backend, "cuda");
	assert_memory_equal(info.kind, kind->kind, strlen(kind->kind));
	assert_string_equal(info.unit, unit);
	assert_true(info.wrapped);
	assert_true(info.allocation <= address);
	assert_true(address + kind->length <= info.allocation + info.allocation_length);
	assert_int_equal(info.mappable, kind->host);
	if (kind->refused)
		assert_non_null(strstr(info.no_export, kind->refused));
	expect_ok(pier_free_buffer(buffer));
}

/* Where it is refused: by its name, on every direct way, and with the way out. */
static void check_refusals(const struct kind *kind, struct pier_buffer *buffer)
{
	struct pier_dmabuf dmabuf;
	struct pier_mr *mr = NULL;

	expect_result(pier_export_dmabuf(buffer, 0, PART, &dmabuf), -EOPNOTSUPP);
	test_assert_sentence(kind->refused);
	if (kind->host)
		return;
	test_assert_sentence("let pier stage it");
	expect_result(
		pier_reg_buffer_mr(rig.pd, buffer, 0, PART, 0, PIER_POLICY_DIRECT, &mr),
		-EOPNOTSUPP);
	test_assert_sentence(kind->refused);
}

static void check_copies(struct pier_buffer *buffer)
{
	static uint8_t bytes[PART], found[PART];

	for (size_t i = 0; i < PART; i++)
		bytes[i] = (uint8_t)(i * 5 + i / 253);
	expect_ok(pier_copy_to_buffer(buffer, 0, bytes, PART));
	memset(bytes + 100, 0xee, 7);
	expect_ok(pier_copy_to_buffer(buffer, 100, bytes + 100, 7));
	expect_ok(pier_copy_from_buffer(buffer, 0, found, PART));
	assert_memory_equal(found, bytes, PART);
}

/* For who accepts all that pier can do, there is a region. */
static void check_region(const struct kind *kind, struct pier_buffer *buffer)
{
	struct pier_mr *mr = NULL;

	expect_ok(pier_reg_buffer_mr(rig.pd, buffer, 0, PART, PIER_ACCESS_SHARED,
				     PIER_POLICY_STAGED, &mr));
	gpu_say("  on soft0, staging allowed: %s%s%s", pier_path_name(pier_mr_path(mr)),
		pier_mr_why(mr)[0] ? "; not better: " : "", pier_mr_why(mr));
	if (kind->host)
		assert_int_equal(pier_mr_path(mr), PIER_PATH_HOST);
	expect_ok(pier_sync_for_nic(mr, 0, PART));
	if (pier_mr_path(mr) == PIER_PATH_STAGED)
		expect_ok(pier_sync_for_device(mr, 0, PART));
	expect_ok(pier_dereg_mr(mr));
}

static void wrap_once(void *argument)
{
	const struct kind *kind = argument;
	struct pier_buffer *buffer = NULL;
	CUdeviceptr address = 0;

	gpu_push();
	gpu_must(kind->take(&address));
	gpu_pop();
	check_query(kind, address);
	expect_ok(pier_wrap_pointer((void *)(uintptr_t)(address + SKEW), PART, &buffer));
	assert_int_equal(pier_buffer_address(buffer), address + SKEW);
	check_copies(buffer);
	if (kind->refused)
		check_refusals(kind, buffer);
	check_region(kind, buffer);
	expect_ok(pier_free_buffer(buffer));
	gpu_push();
	gpu_must(kind->give(address));
	gpu_pop();
}

static void wraps(void **state)
{
	const struct kind *kind = *state;

	if (kind->attribute && !gpu_attribute(kind->attribute))
		gpu_skip("the device has no memory of this kind");
	gpu_run_steady(wrap_once, *state);
}

/* Memory of a context of the application's own, which is current nowhere. */
static void wrap_in_own_context(void *argument)
{
	static uint8_t bytes[1000], found[1000];
	struct pier_buffer *buffer = NULL;
	CUcontext context, popped;
	CUdeviceptr address = 0;

	(void)argument;
	gpu_must(gpu.more.cuCtxCreate(&context, 0, gpu.device));
	gpu_must(gpu.call.cuMemAlloc(&address, GPU_BLOCK));
	gpu_must(gpu.call.cuCtxPopCurrent(&popped));
	expect_ok(pier_wrap_pointer((void *)(uintptr_t)(address + 5), 1000, &buffer));
	memset(bytes, 0x5a, sizeof(bytes));
	expect_ok(pier_copy_to_buffer(buffer, 0, bytes, sizeof(bytes)));
	expect_ok(pier_copy_from_buffer(buffer, 0, found, sizeof(found)));
	assert_memory_equal(found, bytes, sizeof(found));
	expect_ok(pier_free_buffer(buffer));
	gpu_must(gpu.call.cuCtxPushCurrent(context));
	gpu_must(gpu.call.cuMemFree(address));
	gpu_must(gpu.more.cuCtxDestroy(context));
}

static void wraps_in_a_context_of_the_callers(void **state)
{
	(void)state;
	if (!gpu.more.cuCtxCreate)
		gpu_skip("the driver has no cuCtxCreate_v2");
	gpu_run_steady(wrap_in_own_context, NULL);
}

static void expect_no_region(struct pier_buffer *buffer, const char *what)
{
	struct pier_mr *mr = (void *)1;
	int error = pier_reg_buffer_mr(rig.pd, buffer, 0, 4096, PIER_ACCESS_SHARED,
				       PIER_POLICY_PEERMEM, &mr);

	gpu_say("%s: errno %d: %s", what, -error, pier_last_error());
	assert_true(error < 0);
	assert_ptr_equal(mr, (void *)1);
}

static void refuse_freed(void *argument)
{
	struct pier_buffer *before = NULL, *after = NULL;
	struct pier_buffer_info info;
	struct pier_dmabuf dmabuf;
	CUdeviceptr address = 0;

	(void)argument;
	gpu_push();
	gpu_must(take_linear(&address));
	expect_ok(pier_wrap_pointer((void *)(uintptr_t)address, 4096, &before));
	expect_ok(pier_query_buffer(before, &info));
	gpu_must(give_linear(address));
	gpu_pop();
	expect_no_region(before, "wrapped, then freed");
	expect_result(pier_export_dmabuf(before, 0, 4096, &dmabuf),
		      info.no_export[0] ? -EOPNOTSUPP : -EINVAL);
	if (!info.no_export[0])
		test_assert_sentence("was freed");
	expect_ok(pier_free_buffer(before));
	/* Nobody's memory now: taken for the host's, of which nothing is there. */
	if (pier_wrap_pointer((void *)(uintptr_t)address, 4096, &after)) {
		gpu_say("freed, then wrapped: %s", pier_last_error());
		return;
	}
	expect_no_region(after, "freed, then wrapped");
	expect_ok(pier_free_buffer(after));
}

static void refuses_what_was_freed(void **state)
{
	(void)state;
	gpu_run_steady(refuse_freed, NULL);
}

static void refuse_out_of_range(void *argument)
{
	struct pier_buffer *buffer = (void *)1;
	CUdeviceptr address = 0;

	(void)argument;
	gpu_push();
	gpu_must(take_linear(&address));
	expect_result(pier_wrap_pointer((void *)(uintptr_t)(address + 1), 2 * GPU_BLOCK,
					&buffer),
		      -ERANGE);
	gpu_say("one byte beyond: %s", pier_last_error());
	assert_ptr_equal(buffer, (void *)1);
	gpu_must(give_linear(address));
	gpu_pop();
}

static void refuses_what_leaves_its_allocation(void **state)
{
	(void)state;
	gpu_run_steady(refuse_out_of_range, NULL);
}

static void leaves_foreign_pointers_alone(void **state)
{
	struct pier_buffer *buffer = NULL;
	static char bytes[8192];

	(void)state;
	expect_ok(pier_wrap_pointer(bytes, sizeof(bytes), &buffer));
	assert_string_equal(pier_buffer_backend(buffer), "host");
	expect_ok(pier_free_buffer(buffer));
	/* Where nobody has memory. */
	expect_ok(pier_wrap_pointer((void *)4096, 4096, &buffer));
	assert_string_equal(pier_buffer_backend(buffer), "host");
	expect_no_region(buffer, "an address of nobody's");
	expect_ok(pier_free_buffer(buffer));
}

static void expect_refused(const char *spec, size_t length, int expected,
			   const char *part)
{
	struct pier_buffer *buffer = (void *)1;

	expect_result(pier_alloc_buffer(spec, length, &buffer), expected);
	test_assert_sentence(part);
	assert_ptr_equal(buffer, (void *)1);
	gpu_say("%s: %s", spec, pier_last_error());
}

static void refuses_what_does_not_exist(void **state)
{
	char spec[32], part[32];

	(void)state;
	snprintf(spec, sizeof(spec), "cuda:%d", gpu.count);
	snprintf(part, sizeof(part), "no CUDA device %d", gpu.count);
	expect_refused(spec, 4096, -EINVAL, part);
	expect_refused("cuda:4294967296", 4096, -EINVAL, "no CUDA device");
	expect_refused("cuda:one", 4096, -EINVAL, "\"one\" was asked for");
	expect_refused(gpu_spec(":vmm:4097"), 4096, -EINVAL, "multiples of");
	/* 32 TiB. */
	expect_refused(gpu_spec(""), (size_t)1 << 45, -ENOMEM, "OUT_OF_MEMORY");
}

static int open_device(void **state)
{
	(void)state;
	expect_ok(pier_open_device("soft0", &rig.device));
	expect_ok(pier_alloc_pd(rig.device, &rig.pd));
	return 0;
}

static int close_device(void **state)
{
	(void)state;
	expect_ok(pier_dealloc_pd(rig.pd));
	expect_ok(pier_close_device(rig.device));
	return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, gpu_setup, gpu_teardown)

int main(void)
{
	const struct CMUnitTest others[] = {
		TEST(wraps_in_a_context_of_the_callers),
		TEST(refuses_what_was_freed),
		TEST(refuses_what_leaves_its_allocation),
		TEST(leaves_foreign_pointers_alone),
		TEST(refuses_what_does_not_exist),
	};
	enum {
		OTHERS = sizeof(others) / sizeof(others[0]),
	};
	struct CMUnitTest tests[KINDS + OTHERS];

	gpu_open();
	for (int i = 0; i < KINDS; i++)
		tests[i] = (struct CMUnitTest){ kinds[i].name, wraps, gpu_setup,
						gpu_teardown, (void *)&kinds[i] };
	memcpy(tests + KINDS, others, sizeof(others));
	return cmocka_run_group_tests_name("gpu_kinds", tests, open_device, close_device);
}
