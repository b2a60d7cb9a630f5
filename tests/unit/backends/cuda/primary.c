/* SPDX-License-Identifier: BSD-3-Clause */
/* Two that retain a device's primary context at once: one reference stays. */
#include "tests/support/cmocka.h"
#include "tests/support/expect.h"

#include <dlfcn.h>

#include "cuda/control.h"
#include "backends/cuda/context.h"
#include "backends/cuda/driver.h"

static struct pier_cuda *cuda;
static CUresult (*real_retain)(CUcontext *ret_context, CUdevice device);
static unsigned int calls;

/* As if another thread came in between, from its first question to its last. */
static CUresult retain(CUcontext *ret_context, CUdevice device)
{
	struct pier_cuda_scope scope;

	if (calls++ == 0) {
		expect_ok(pier_cuda_enter(cuda, device, NULL, &scope));
		pier_cuda_leave(cuda, &scope);
	}
	return real_retain(ret_context, device);
}

static void test_two_at_once(void **state)
{
	struct fake_cuda *(*find)(void);
	struct pier_cuda_scope scope;
	struct fake_cuda *fake;

	(void)state;
	expect_ok(pier_cuda_open(&cuda));
	*(void **)&find = dlsym(cuda->library, "fake_cuda_control");
	assert_non_null(find);
	fake = find();
	real_retain = cuda->call.cuDevicePrimaryCtxRetain;
	cuda->call.cuDevicePrimaryCtxRetain = retain;
	expect_ok(pier_cuda_enter(cuda, 1, NULL, &scope));
	pier_cuda_leave(cuda, &scope);
	assert_int_equal(calls, 2);
	assert_int_equal(fake->device[1].primary_users, 1);
	/* And from then on none more. */
	expect_ok(pier_cuda_enter(cuda, 1, NULL, &scope));
	pier_cuda_leave(cuda, &scope);
	assert_int_equal(calls, 2);
	assert_int_equal(fake->device[1].primary_users, 1);
	assert_int_equal(fake->device[0].primary_users, 0);
	assert_int_equal(fake->current, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_two_at_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
