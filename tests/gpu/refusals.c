/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Problematic pointers and specs: memory of the application's own contexts, freed or
 * foreign pointers, ranges too long, and missing devices.
 */
#include "../support/cmocka.h"
#include "../support/expect.h"

#include <errno.h>
#include <stdio.h>

#include "driver.h"

enum {
	LENGTH = 2 * GPU_BLOCK,
};

/* Memory of the application's own context, which is current in no thread. */
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
	expect_ok(pier_buffer_wrap((void *)(uintptr_t)(address + 5), 1000, &buffer));
	memset(bytes, 0x5a, sizeof(bytes));
	expect_ok(pier_buffer_copy_to(buffer, 0, bytes, sizeof(bytes)));
	expect_ok(pier_buffer_copy_from(buffer, 0, found, sizeof(found)));
	assert_memory_equal(found, bytes, sizeof(found));
	expect_ok(pier_buffer_free(buffer));
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
	int error = pier_mr_reg_buffer(gpu.pd, buffer, 0, 4096, PIER_ACCESS_SHARED,
				       PIER_POLICY_PEERMEM, &mr);

	gpu_say("%s: errno %d: %s", what, -error, pier_error_message());
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
	gpu_must(gpu.call.cuMemAlloc(&address, LENGTH));
	expect_ok(pier_buffer_wrap((void *)(uintptr_t)address, 4096, &before));
	expect_ok(pier_buffer_query(before, &info, sizeof(info)));
	gpu_must(gpu.call.cuMemFree(address));
	gpu_pop();
	expect_no_region(before, "wrapped, then freed");
	expect_result(pier_dmabuf_export(before, 0, 4096, PIER_MAPPING_AUTO, &dmabuf),
		      info.no_export[0] ? -EOPNOTSUPP : -EINVAL);
	if (!info.no_export[0])
		test_assert_sentence("was freed");
	expect_ok(pier_buffer_free(before));
	/*
	 * The memory has been freed. It is treated as host memory, which is not mapped
	 * there.
	 */
	if (pier_buffer_wrap((void *)(uintptr_t)address, 4096, &after)) {
		gpu_say("freed, then wrapped: %s", pier_error_message());
		return;
	}
	expect_no_region(after, "freed, then wrapped");
	expect_ok(pier_buffer_free(after));
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
	gpu_must(gpu.call.cuMemAlloc(&address, LENGTH));
	expect_result(pier_buffer_wrap((void *)(uintptr_t)(address + 1), LENGTH, &buffer),
		      -ERANGE);
	gpu_say("one byte beyond: %s", pier_error_message());
	assert_ptr_equal(buffer, (void *)1);
	gpu_must(gpu.call.cuMemFree(address));
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
	expect_ok(pier_buffer_wrap(bytes, sizeof(bytes), &buffer));
	assert_string_equal(test_buffer_info(buffer).backend, "host");
	expect_ok(pier_buffer_free(buffer));
	/* An unmapped address. */
	expect_ok(pier_buffer_wrap((void *)4096, 4096, &buffer));
	assert_string_equal(test_buffer_info(buffer).backend, "host");
	expect_no_region(buffer, "an address of nobody's");
	expect_ok(pier_buffer_free(buffer));
}

static void expect_refused(const char *spec, size_t length, int expected,
			   const char *part)
{
	struct pier_buffer *buffer = (void *)1;

	expect_result(pier_buffer_alloc(spec, length, &buffer), expected);
	test_assert_sentence(part);
	assert_ptr_equal(buffer, (void *)1);
	gpu_say("%s: %s", spec, pier_error_message());
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
	if (gpu_attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED))
		expect_refused(gpu_spec(":vmm:4097"), 4096, -EINVAL, "multiples of");
	/* 32 TiB. */
	expect_refused(gpu_spec(""), (size_t)1 << 45, -ENOMEM, "OUT_OF_MEMORY");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, gpu_setup, gpu_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(wraps_in_a_context_of_the_callers),
		TEST(refuses_what_was_freed),
		TEST(refuses_what_leaves_its_allocation),
		TEST(leaves_foreign_pointers_alone),
		TEST(refuses_what_does_not_exist),
	};

	gpu_open_cuda();
	return cmocka_run_group_tests_name("gpu_refusals", tests, gpu_open_nic,
					   gpu_close_nic);
}
