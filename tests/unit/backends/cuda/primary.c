/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Two threads retain a device's primary context at once: one reference remains. And a
 * driver without numbers of contexts.
 */
#include "tests/support/cmocka.h"
#include "tests/support/expect.h"

#include <dlfcn.h>

#include "cuda/control.h"
#include "backends/cuda/driver.h"

static struct pier_cuda *cuda;
static CUresult (*real_retain)(CUcontext *ret_context, CUdevice device);
static unsigned int calls;

/* As if another thread ran between its first query and its last. */
static CUresult retain(CUcontext *ret_context, CUdevice device)
{
	struct pier_cuda_saved saved;

	if (calls++ == 0) {
		expect_ok(pier_cuda_enter(cuda, device, NULL, &saved));
		pier_cuda_leave(cuda, &saved);
	}
	return real_retain(ret_context, device);
}

static void concurrent_retains_keep_one_reference(void **state)
{
	struct fake_cuda *(*find)(void);
	struct pier_cuda_saved saved;
	struct fake_cuda *fake;

	(void)state;
	expect_ok(pier_cuda_open(&cuda));
	*(void **)&find = dlsym(cuda->library, "fake_cuda_control");
	assert_non_null(find);
	fake = find();
	real_retain = cuda->call.cuDevicePrimaryCtxRetain;
	cuda->call.cuDevicePrimaryCtxRetain = retain;
	expect_ok(pier_cuda_enter(cuda, 1, NULL, &saved));
	pier_cuda_leave(cuda, &saved);
	assert_int_equal(calls, 2);
	assert_int_equal(fake->device[1].primary_users, 1);
	/* And no more from then on. */
	expect_ok(pier_cuda_enter(cuda, 1, NULL, &saved));
	pier_cuda_leave(cuda, &saved);
	assert_int_equal(calls, 2);
	assert_int_equal(fake->device[1].primary_users, 1);
	assert_int_equal(fake->device[0].primary_users, 0);
	assert_int_equal(fake->current, 0);
}

static void use_context(void)
{
	struct pier_cuda_saved saved;

	expect_ok(pier_cuda_enter(cuda, 0, NULL, &saved));
	pier_cuda_leave(cuda, &saved);
}

/* Before CUDA 12.0 the state of the primary context is all that there is. */
static void notices_a_reset_by_the_state(void **state)
{
	CUresult (*get_id)(CUcontext context, unsigned long long *ret_id);
	CUresult (*reset)(CUdevice device);

	(void)state;
	expect_ok(pier_cuda_open(&cuda));
	*(void **)&reset = dlsym(cuda->library, "cuDevicePrimaryCtxReset_v2");
	assert_non_null(reset);
	get_id = cuda->call.cuCtxGetId;
	cuda->call.cuCtxGetId = NULL;
	use_context();
	assert_int_equal(reset(0), CUDA_SUCCESS);
	use_context();
	cuda->call.cuCtxGetId = get_id;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(concurrent_retains_keep_one_reference),
		cmocka_unit_test(notices_a_reset_by_the_state),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
