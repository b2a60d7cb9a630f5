/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory that the backend allocates: every kind, and every refusal. */
#include "cuda_fixture.h"

static struct pier_memory_facts facts_of(const struct pier_memory *memory)
{
	struct pier_memory_facts facts = { 0 };

	cuda->describe(memory, &facts);
	return facts;
}

/* All of it, as the device sees it. */
static void assert_zero(const struct pier_memory *memory)
{
	unsigned char *bytes = malloc(memory->length);

	assert_non_null(bytes);
	assert_int_equal(app.control->read(memory->address, bytes, memory->length), 0);
	for (uint64_t i = 0; i < memory->length; i++) {
		if (bytes[i])
			fail_msg("byte %llu is %#x", (unsigned long long)i, bytes[i]);
	}
	free(bytes);
}

/* Copies in and out at odd offsets leave the bytes around them alone. */
static void assert_copies(const struct pier_memory *memory)
{
	char in[] = "what the host wrote", out[sizeof(in)];
	uint64_t offset = memory->length - sizeof(in) - 1;
	char guards[2] = { 1, 1 };

	expect_ok(cuda->copy_to(memory, offset, in, sizeof(in)));
	expect_ok(cuda->copy_from(memory, offset, out, sizeof(out)));
	assert_memory_equal(in, out, sizeof(in));
	assert_int_equal(app.control->read(memory->address + offset, out, sizeof(out)),
			 0);
	assert_memory_equal(in, out, sizeof(in));
	expect_ok(cuda->copy_from(memory, offset - 1, &guards[0], 1));
	expect_ok(cuda->copy_from(memory, offset + sizeof(in), &guards[1], 1));
	assert_int_equal(guards[0], 0);
	assert_int_equal(guards[1], 0);
}

/* NULL for the default unit. */
static void check_kind(const char *unit, uint64_t length, const char *kind,
		       const char *number, uint64_t granularity, bool host)
{
	struct pier_memory_facts facts;
	struct pier_memory memory;

	expect_ok(cuda->alloc(unit, length, &memory));
	assert_true(memory.length >= length);
	assert_int_equal(memory.length % granularity, 0);
	assert_int_equal(memory.address % pier_host_page(), 0);
	assert_int_equal(memory.cpu != NULL, host);
	facts = facts_of(&memory);
	assert_string_equal(facts.kind, kind);
	assert_string_equal(facts.unit, number);
	assert_string_equal(facts.no_export, "");
	assert_int_equal(facts.host, host);
	assert_zero(&memory);
	assert_copies(&memory);
	assert_null(fixture_current());
	cuda->free(&memory);
	assert_null(fixture_current());
}

static void allocates_every_kind(void **state)
{
	(void)state;
	check_kind(NULL, 1, "cuMemAlloc", "0", FIXTURE_BLOCK, false);
	check_kind("0", FIXTURE_BLOCK - 1, "cuMemAlloc", "0", FIXTURE_BLOCK, false);
	check_kind("1", FIXTURE_BLOCK + 1, "cuMemAlloc", "1", 65536, false);
	check_kind("1:vmm", FIXTURE_BLOCK + 1, "VMM", "1", FIXTURE_BLOCK, false);
	check_kind("0:vmm:2M", FIXTURE_BLOCK, "VMM", "0", FIXTURE_BLOCK, false);
	check_kind("0:vmm:2048K", 5 * FIXTURE_MIB, "VMM, 3 segments", "0", FIXTURE_BLOCK,
		   false);
	check_kind("1:vmm:4194304", 5 * FIXTURE_MIB, "VMM, 2 segments", "1",
		   4 * FIXTURE_MIB, false);
	check_kind("0:pool", 1, "stream-ordered pool", "0", 65536, false);
	check_kind("1:host", 100, "page-locked host", "1", pier_host_page(), true);
}

/* NICs may refuse memory of cuMemAlloc() there. */
static void coherent_devices_give_vmm(void **state)
{
	struct pier_memory_facts facts;
	struct pier_memory memory;
	unsigned int capable = 0;

	(void)state;
	app.control->device[0].coherent = true;
	check_kind("0", 1, "VMM", "0", FIXTURE_BLOCK, false);
	check_kind("0:linear", 1, "cuMemAlloc", "0", FIXTURE_BLOCK, false);
	expect_ok(cuda->alloc("0", 1, &memory));
	assert_int_equal(
		app.cuPointerGetAttribute(&capable,
					  CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
					  memory.address),
		CUDA_SUCCESS);
	assert_int_equal(capable, 1);
	cuda->free(&memory);
	/* If there is none: memory of cuMemAlloc(). */
	fixture_fail("cuMemCreate", CUDA_ERROR_NOT_SUPPORTED);
	check_kind("0", 1, "cuMemAlloc", "0", FIXTURE_BLOCK, false);
	/* Memory of the same kind has the unit `alike`, or `unit`. */
	expect_ok(cuda->alloc("0:linear", 1, &memory));
	facts = facts_of(&memory);
	assert_string_equal(facts.alike, "0:linear");
	cuda->free(&memory);
	expect_ok(cuda->alloc("1:vmm", 1, &memory));
	facts = facts_of(&memory);
	assert_string_equal(facts.alike, "1:vmm");
	cuda->free(&memory);
	expect_ok(cuda->alloc("0:pool", 1, &memory));
	facts = facts_of(&memory);
	assert_string_equal(facts.alike, "0:pool");
	cuda->free(&memory);
	expect_ok(cuda->alloc("1", 1, &memory));
	facts = facts_of(&memory);
	assert_string_equal(facts.alike, "");
	cuda->free(&memory);
}

/* pier allocates on the devices as the application numbers them. */
static void allocates_on_the_chosen_device(void **state)
{
	static const char *const units[] = { "1", "1:vmm", "1:pool", "1:host" };
	struct pier_memory memory;
	int device = -1;

	(void)state;
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		expect_ok(cuda->alloc(units[i], 1, &memory));
		assert_int_equal(app.cuPointerGetAttribute(
					 &device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
					 memory.address),
				 CUDA_SUCCESS);
		assert_int_equal(device, 1);
		cuda->free(&memory);
	}
}

static void refuses_invalid_units(void **state)
{
	static const char *const units[] = {
		"x",
		"-1",
		"+1",
		" 1",
		"0:",
		"0:vm",
		"0:vmm:",
		"0:vmm:0",
		"0:vmm:2T",
		"0:vmm:2MB",
		"0:vmm:-2M",
		"0:host:2M",
		"0:vmm:99999999999999999999",
		"0:vmm:18014398509481985G",
		"0x1",
		"0:VMM",
	};
	struct pier_memory memory;

	(void)state;
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		expect_result(cuda->alloc(units[i], 1, &memory), -EINVAL);
		test_assert_sentence("N:vmm:SIZE");
		test_assert_sentence(units[i]);
	}
	expect_result(cuda->alloc("0:vmm:3M", 1, &memory), -EINVAL);
	test_assert_sentence("multiples of 2097152");
}

static void refuses_a_missing_device(void **state)
{
	static const char *const units[] = {
		"2", "2:vmm", "4294967296", "18446744073709551615", "2:host",
	};
	struct pier_memory memory;

	(void)state;
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		expect_result(cuda->alloc(units[i], 1, &memory), -EINVAL);
		test_assert_sentence("there are 2");
	}
}

static void reports_exhausted_memory(void **state)
{
	struct pier_memory memory;

	(void)state;
	app.control->device[0].memory = 8 * FIXTURE_MIB;
	expect_result(cuda->alloc("0", 9 * FIXTURE_MIB, &memory), -ENOMEM);
	test_assert_sentence("cuMemAlloc of 9437184 bytes");
	test_assert_sentence("CUDA_ERROR_OUT_OF_MEMORY");
	expect_result(cuda->alloc("0:vmm", 9 * FIXTURE_MIB, &memory), -ENOMEM);
	test_assert_sentence("cuMemCreate");
	/* Four segments succeed and the fifth fails: all are freed. */
	expect_result(cuda->alloc("0:vmm:2M", 9 * FIXTURE_MIB, &memory), -ENOMEM);
	assert_int_equal(app.control->device[0].memory_used, 0);
	expect_result(cuda->alloc("0", UINT64_MAX, &memory), -ENOMEM);
	expect_result(cuda->alloc("0:vmm", UINT64_MAX, &memory), -ENOMEM);
	expect_result(cuda->alloc("0:vmm:2M", UINT64_MAX, &memory), -ENOMEM);
	expect_result(cuda->alloc("0:host", UINT64_MAX, &memory), -ENOMEM);
	/* The other device has its own memory. */
	expect_ok(cuda->alloc("1", 9 * FIXTURE_MIB, &memory));
	cuda->free(&memory);
}

/* Every call that allocates fails, the first time and the second time. */
static void failures_leave_nothing_behind(void **state)
{
	static const struct {
		const char *unit, *call;
	} cases[] = {
		{ "0", "cuCtxPushCurrent" },
		{ "0", "cuMemAlloc" },
		{ "0", "cuMemsetD8Async" },
		{ "0", "cuStreamSynchronize" },
		{ "0:host", "cuMemHostAlloc" },
		{ "0:vmm:2M", "cuMemGetAllocationGranularity" },
		{ "0:vmm:2M", "cuMemAddressReserve" },
		{ "0:vmm:2M", "cuMemCreate" },
		{ "0:vmm:2M", "cuMemMap" },
		{ "0:vmm:2M", "cuMemSetAccess" },
		{ "0:vmm:2M", "cuMemsetD8Async" },
	};
	struct pier_memory memory;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		fixture_fail(cases[i].call, 999);
		expect_result(cuda->alloc(cases[i].unit, 5 * FIXTURE_MIB, &memory), -EIO);
		test_assert_sentence("CUDA_ERROR_UNKNOWN");
		assert_null(fixture_current());
	}
	fixture_fail("cuMemCreate", 999);
	fake_cuda_call(app.control, "cuMemCreate")->fail_in = 2;
	expect_result(cuda->alloc("0:vmm:2M", 5 * FIXTURE_MIB, &memory), -EIO);
	fixture_fail("cuMemMap", 205);
	fake_cuda_call(app.control, "cuMemMap")->fail_in = 3;
	expect_result(cuda->alloc("0:vmm:2M", 5 * FIXTURE_MIB, &memory), -ENOMEM);
	test_assert_sentence("cuMemMap");
}

static void reports_a_driver_without_vmm(void **state)
{
	struct pier_backend_export dmabuf = { .fd = -1 };
	struct pier_memory memory;

	(void)state;
	app.control->device[0].vmm = false;
	expect_result(cuda->alloc("0:vmm", 1, &memory), -EOPNOTSUPP);
	test_assert_sentence("no virtual memory management");
	/*
	 * Without support for the flag the memory can be allocated, and the driver's
	 * refusal to export it names the flag.
	 */
	app.control->device[1].vmm_rdma = false;
	expect_ok(cuda->alloc("1:vmm", 1, &memory));
	expect_result(call_export(cuda, &memory, memory.address, memory.length,
				  PIER_MAPPING_DEFAULT, &dmabuf),
		      -EOPNOTSUPP);
	test_assert_sentence("gpuDirectRDMACapable");
	cuda->free(&memory);
}

/* pier leaves nothing on the application's context stack, before or after. */
static void keeps_the_context_of_the_application(void **state)
{
	CUcontext context = fixture_context(1);
	struct pier_memory memory;
	uint64_t pushes = app.control->pushes;

	(void)state;
	expect_ok(cuda->alloc("0", 1, &memory));
	assert_ptr_equal(fixture_current(), context);
	assert_true(app.control->pushes > pushes);
	assert_copies(&memory);
	assert_ptr_equal(fixture_current(), context);
	cuda->free(&memory);
	assert_ptr_equal(fixture_current(), context);
	assert_int_equal(app.control->current, 1);
	fixture_destroy(context);
}

/* A wrapped pointer keeps the memory of a freed buffer until it is released. */
static void wrapped_pointer_keeps_freed_memory(void **state)
{
	struct pier_memory memory, found;
	char byte = 7;

	(void)state;
	expect_ok(cuda->alloc("0", 1, &memory));
	expect_ok(call_find(cuda, memory.address + 100, 8, &found));
	assert_int_equal(found.address, memory.address);
	assert_int_equal(found.length, memory.length);
	cuda->free(&memory);
	expect_ok(cuda->copy_to(&found, 100, &byte, 1));
	cuda->release(&found);
	expect_result(call_find(cuda, found.address, 1, &memory), -ENOENT);
}

/* Through the public calls: one buffer is freed while another wraps its memory. */
static void wraps_and_frees_buffers(void **state)
{
	char in[] = "by the public calls", out[sizeof(in)];
	struct pier_buffer *buffer, *wrapped;

	(void)state;
	expect_ok(pier_buffer_alloc("cuda:1:vmm:2M", 5 * FIXTURE_MIB, &buffer));
	assert_string_equal(test_buffer_info(buffer).backend, "cuda");
	expect_ok(pier_buffer_wrap(
		(void *)(uintptr_t)(pier_buffer_address(buffer) + 2 * FIXTURE_MIB - 4),
		sizeof(in), &wrapped));
	expect_ok(pier_buffer_copy_to(wrapped, 0, in, sizeof(in)));
	expect_ok(pier_buffer_copy_from(buffer, 2 * FIXTURE_MIB - 4, out, sizeof(out)));
	assert_memory_equal(in, out, sizeof(in));
	expect_ok(pier_buffer_free(buffer));
	expect_ok(pier_buffer_free(wrapped));
}

static void lists_units(void **state)
{
	struct pier_backend_unit unit;

	(void)state;
	snprintf(app.control->device[1].pci, sizeof(app.control->device[1].pci), "%s",
		 "0000:C1:00.0");
	snprintf(app.control->device[1].name, sizeof(app.control->device[1].name), "%s",
		 "NVIDIA H200");
	app.control->device[1].dmabuf = false;
	expect_ok(cuda->unit(0, &unit));
	assert_string_equal(unit.unit, "0");
	assert_non_null(strstr(unit.detail, "dma-bufs, GPUDirect RDMA"));
	assert_null(strstr(unit.detail, "no dma-bufs"));
	assert_non_null(strstr(unit.detail, "CUDA 13.0"));
	expect_ok(cuda->unit(1, &unit));
	assert_string_equal(unit.unit, "1");
	assert_string_equal(unit.name, "NVIDIA H200");
	assert_string_equal(unit.pci, "0000:c1:00.0");
	assert_non_null(strstr(unit.detail, "no dma-bufs"));
	expect_result(cuda->unit(2, &unit), -ENOENT);
	expect_result(cuda->unit(UINT32_MAX, &unit), -ENOENT);
}

static void locates_memory(void **state)
{
	struct pier_memory memory;
	char pci[16];
	int node;

	(void)state;
	snprintf(app.control->device[1].pci, sizeof(app.control->device[1].pci), "%s",
		 "0000:C1:00.0");
	expect_ok(cuda->alloc("1", 1, &memory));
	expect_ok(cuda->locate(&memory, pci, &node));
	assert_string_equal(pci, "0000:c1:00.0");
	cuda->free(&memory);
	/* Host memory is on no device. */
	expect_ok(cuda->alloc("1:host", 1, &memory));
	expect_ok(cuda->locate(&memory, pci, &node));
	assert_string_equal(pci, "");
	assert_int_equal(node, -1);
	cuda->free(&memory);
}

static void probes_the_driver(void **state)
{
	char detail[512];

	(void)state;
	expect_ok(cuda->probe(detail, sizeof(detail)));
	assert_non_null(strstr(detail, "2 devices"));
	assert_non_null(strstr(detail, "CUDA 13.0"));
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
	const struct CMUnitTest tests[] = {
		CASE(allocates_every_kind),
		CASE(coherent_devices_give_vmm),
		CASE(allocates_on_the_chosen_device),
		CASE(refuses_invalid_units),
		CASE(refuses_a_missing_device),
		CASE(reports_exhausted_memory),
		CASE(failures_leave_nothing_behind),
		CASE(reports_a_driver_without_vmm),
		CASE(keeps_the_context_of_the_application),
		CASE(wrapped_pointer_keeps_freed_memory),
		CASE(wraps_and_frees_buffers),
		CASE(lists_units),
		CASE(locates_memory),
		CASE(probes_the_driver),
	};

	return cmocka_run_group_tests(tests, fixture_begin, NULL);
}
