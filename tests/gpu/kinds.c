/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Memory that the application allocates from the driver itself: pier recognises its kind,
 * copies to and from all of it, and refuses with a reason what cannot be exported. Also
 * memory that is not CUDA's, or no longer is.
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
	/* A part that begins and ends inside pages. */
	SKEW = 12345,
	PART = 70001,
};

struct kind {
	const char *name;
	CUresult (*take)(CUdeviceptr *ret_address);
	CUresult (*give)(CUdeviceptr address);
	const char *kind;    /* pier's name for the kind */
	const char *refused; /* the reason of the refusal; NULL: the driver decides */
	uint64_t length;     /* of the allocation */
	CUdevice_attribute attribute; /* an attribute that the device must have, or 0 */
	bool host;
};

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

/*
 * The whole memory, so that both segments are listed. pier's description of a part must
 * agree.
 */
static void check_query(const struct kind *kind, CUdeviceptr address)
{
	struct pier_buffer *buffer = NULL;
	struct pier_buffer_info info;
	char unit[16];

	snprintf(unit, sizeof(unit), "%d", gpu.device);
	expect_ok(pier_buffer_wrap((void *)(uintptr_t)address, kind->length, &buffer));
	expect_ok(pier_buffer_query(buffer, &info));
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
	if (kind->host && kind->refused)
		assert_non_null(strstr(info.no_export, kind->refused));
	expect_ok(pier_buffer_free(buffer));
}

/*
 * The driver decides whether it exports the kind. If it refuses, the sentence names the
 * kind on every direct path, and a remedy; a device without dma-bufs is named instead.
 */
static void check_refusals(const struct kind *kind, struct pier_buffer *buffer)
{
	struct pier_buffer_info info;
	struct pier_dmabuf dmabuf;
	struct pier_mr *mr = NULL;
	const char *reason;

	expect_ok(pier_buffer_query(buffer, &info));
	reason = info.no_export[0] ? info.no_export : kind->refused;
	if (!info.no_export[0] && !pier_dmabuf_export(buffer, 0, PART, &dmabuf)) {
		gpu_say("  this driver exports it");
		pier_dmabuf_close(&dmabuf);
		return;
	}
	expect_result(pier_dmabuf_export(buffer, 0, PART, &dmabuf), -EOPNOTSUPP);
	test_assert_sentence(reason);
	if (kind->host)
		return;
	test_assert_sentence("allow a bounce buffer");
	expect_result(
		pier_reg_buffer_mr(gpu.pd, buffer, 0, PART, 0, PIER_POLICY_DIRECT, &mr),
		-EOPNOTSUPP);
	test_assert_sentence(reason);
}

static void check_copies(struct pier_buffer *buffer)
{
	static uint8_t bytes[PART], found[PART];

	for (size_t i = 0; i < PART; i++)
		bytes[i] = (uint8_t)(i * 5 + i / 253);
	expect_ok(pier_buffer_copy_to(buffer, 0, bytes, PART));
	memset(bytes + 100, 0xee, 7);
	expect_ok(pier_buffer_copy_to(buffer, 100, bytes + 100, 7));
	expect_ok(pier_buffer_copy_from(buffer, 0, found, PART));
	assert_memory_equal(found, bytes, PART);
}

/* With a policy that accepts every path, registration must succeed. */
static void check_region(const struct kind *kind, struct pier_buffer *buffer)
{
	struct pier_mr *mr = NULL;

	expect_ok(pier_reg_buffer_mr(gpu.pd, buffer, 0, PART, PIER_ACCESS_SHARED,
				     PIER_POLICY_BOUNCE, &mr));
	gpu_say("  on soft0, bounce buffer allowed: %s%s%s",
		pier_path_name(pier_mr_path(mr)),
		pier_mr_reason(mr)[0] ? "; not better: " : "", pier_mr_reason(mr));
	if (kind->host)
		assert_int_equal(pier_mr_path(mr), PIER_PATH_HOST);
	expect_ok(pier_mr_sync_for_nic(mr, 0, PART));
	if (pier_mr_path(mr) == PIER_PATH_BOUNCE)
		expect_ok(pier_mr_sync_for_device(mr, 0, PART));
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
	expect_ok(pier_buffer_wrap((void *)(uintptr_t)(address + SKEW), PART, &buffer));
	assert_int_equal(pier_buffer_address(buffer), address + SKEW);
	check_copies(buffer);
	if (kind->refused)
		check_refusals(kind, buffer);
	check_region(kind, buffer);
	expect_ok(pier_buffer_free(buffer));
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

int main(void)
{
	struct CMUnitTest tests[KINDS];

	gpu_open();
	for (int i = 0; i < KINDS; i++)
		tests[i] = (struct CMUnitTest){ kinds[i].name, wraps, gpu_setup,
						gpu_teardown, (void *)&kinds[i] };
	return cmocka_run_group_tests_name("gpu_kinds", tests, gpu_open_nic,
					   gpu_close_nic);
}
