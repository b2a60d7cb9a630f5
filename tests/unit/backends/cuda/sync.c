/* SPDX-License-Identifier: BSD-3-Clause */
/* Synchronous memory operations: how they are asked for, and when. */
#include "cuda_fixture.h"

static int setup(void **state)
{
	fixture_setup(state);
	/* A context that pier has not seen yet. */
	assert_int_equal(app.cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
	return 0;
}

static void export_it(const struct pier_memory *memory)
{
	struct pier_backend_export dmabuf = { .fd = -1 };

	expect_ok(call_export(cuda, memory, memory->address, memory->length,
			      PIER_MAPPING_DEFAULT, &dmabuf));
	cuda->close_export(&dmabuf);
}

static unsigned int primary_flags(void)
{
	unsigned int flags = 0;
	int active;

	assert_int_equal(app.cuDevicePrimaryCtxGetState(0, &flags, &active),
			 CUDA_SUCCESS);
	return flags;
}

static char warning[512];

static void keep_warning(enum pier_log_level level, const char *message, void *context)
{
	(void)context;
	if (level == PIER_LOG_WARNING)
		snprintf(warning, sizeof(warning), "%s", message);
}

/* The memory can be exported; the caller must wait for its stream. */
static void failure_is_a_warning(void **state)
{
	struct pier_memory memory;

	(void)state;
	expect_ok(cuda->alloc("0", 1, &memory));
	pier_log_set(PIER_LOG_WARNING, keep_warning, NULL);
	fixture_fail("cuPointerSetAttribute", 999);
	warning[0] = '\0';
	export_it(&memory);
	assert_non_null(strstr(warning, "SYNC_MEMOPS"));
	assert_non_null(strstr(warning, "wait for your stream"));
	/* It is asked for again at the next export. */
	warning[0] = '\0';
	export_it(&memory);
	assert_string_equal(warning, "");
	fixture_fail("cuPointerSetAttribute", 999);
	expect_ok(cuda->expose(&memory));
	pier_log_set(PIER_LOG_NONE, NULL, NULL);
	cuda->free(&memory);
}

/* A flag that the context reports and does not take back. */
static void sets_the_bare_flag_if_others_are_refused(void **state)
{
	struct pier_memory memory;

	(void)state;
	app.control->maps_host = true;
	expect_ok(cuda->alloc("0:vmm", 1, &memory));
	export_it(&memory);
	assert_int_equal(primary_flags(), CU_CTX_SYNC_MEMOPS);
	cuda->free(&memory);
}

static void does_not_set_the_attribute_of_pools(void **state)
{
	struct fake_cuda_call *set = fake_cuda_call(app.control, "cuPointerSetAttribute");
	CUcontext context = fixture_context(0), popped;
	struct pier_memory memory;
	CUdeviceptr address;

	(void)state;
	app.control->device[0].every_kind = true;
	assert_int_equal(app.cuMemAllocAsync(&address, 4 * FIXTURE_MIB, NULL),
			 CUDA_SUCCESS);
	assert_int_equal(app.cuCtxPopCurrent_v2(&popped), CUDA_SUCCESS);
	expect_ok(call_find(cuda, address, 1, &memory));
	export_it(&memory);
	assert_int_equal(set->calls, 0);
	assert_int_equal(primary_flags(), CU_CTX_SYNC_MEMOPS);
	cuda->release(&memory);
	fixture_free(context, address);
	fixture_destroy(context);
	expect_ok(pier_backend_warm_up("cuda:0"));
}

/* Everything that a transfer of device memory needs. */
static void use_memory(void)
{
	struct pier_memory memory, found;
	char byte = 1;

	expect_ok(cuda->alloc("0:vmm", 1, &memory));
	expect_ok(cuda->copy_to(&memory, 0, &byte, 1));
	export_it(&memory);
	expect_ok(call_find(cuda, memory.address, 1, &found));
	cuda->release(&found);
	cuda->free(&memory);
}

/* cudaLaunchKernel() in another thread holds the lock that cuCtxSetFlags() takes. */
static void warm_up_takes_the_lock_early(void **state)
{
	(void)state;
	expect_ok(pier_backend_warm_up("cuda:0"));
	assert_int_equal(primary_flags(), CU_CTX_SYNC_MEMOPS);
	app.control->launching = true;
	use_memory();
	expect_ok(pier_backend_warm_up("cuda:0"));
	assert_int_equal(app.control->deadlocks, 0);
	/* Without it. */
	assert_int_equal(app.cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
	use_memory();
	assert_true(app.control->deadlocks > 0);
	app.control->launching = false;
	app.control->deadlocks = 0;
}

static void warm_up_prepares_the_current_context(void **state)
{
	CUcontext context = fixture_context(1);
	unsigned int flags = 0;

	(void)state;
	expect_ok(pier_backend_warm_up("cuda:1"));
	assert_int_equal(app.cuCtxGetFlags(&flags), CUDA_SUCCESS);
	assert_int_equal(flags, CU_CTX_SYNC_MEMOPS);
	assert_ptr_equal(fixture_current(), context);
	fixture_destroy(context);
	use_memory();
}

static void warm_up_reports_mistakes(void **state)
{
	(void)state;
	expect_result(pier_backend_warm_up("cuda:9"), -EINVAL);
	test_assert_sentence("warming up cuda:9");
	test_assert_sentence("no CUDA device 9");
	expect_result(pier_backend_warm_up("nothing:0"), -ENOENT);
	expect_result(pier_backend_warm_up(NULL), -EINVAL);
	/* Nothing to prepare. */
	expect_ok(pier_backend_warm_up("memfd"));
	use_memory();
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, fixture_teardown)
	const struct CMUnitTest tests[] = {
		CASE(failure_is_a_warning),
		CASE(sets_the_bare_flag_if_others_are_refused),
		CASE(does_not_set_the_attribute_of_pools),
		CASE(warm_up_takes_the_lock_early),
		CASE(warm_up_prepares_the_current_context),
		CASE(warm_up_reports_mistakes),
	};

	return cmocka_run_group_tests(tests, fixture_begin, NULL);
}
