/* SPDX-License-Identifier: BSD-3-Clause */

/* The fake CUDA driver: versions, devices, contexts, and injected failures. */

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_cuda_fixture.h"

#include "cuda/abi_check.h"

static void has_the_abi_of_cuda_h(void **state)
{
	(void)state;
	if (fake_cuda_abi_unchecked()) {
		print_message("skipped: %s\n", fake_cuda_abi_unchecked());
		skip();
	}
}

/* Must run first, before any other test calls cuInit(). */
static void requires_initialisation(void **state)
{
	CUdeviceptr address;
	CUcontext some;
	int count;

	(void)state;
	load_driver();
	assert_int_equal(driver.cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
	assert_int_equal(driver.cuDevicePrimaryCtxRetain(&some, 0),
			 CUDA_ERROR_NOT_INITIALIZED);
	assert_int_equal(driver.cuMemAlloc_v2(&address, 1), CUDA_ERROR_NOT_INITIALIZED);
	assert_int_equal(driver.cuDriverGetVersion(&count), CUDA_SUCCESS);
	assert_int_equal(count, 13000);
	fake->devices = 0;
	assert_int_equal(driver.cuInit(0), CUDA_ERROR_NO_DEVICE);
	assert_int_equal(driver.cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
	dlclose(driver.library);
}

static void lists_its_devices(void **state)
{
	char text[32];
	int value;

	(void)state;
	assert_int_equal(driver.cuDeviceGetCount(&value), CUDA_SUCCESS);
	assert_int_equal(value, 2);
	assert_int_equal(driver.cuDeviceGet(&value, 2), CUDA_ERROR_INVALID_DEVICE);
	assert_int_equal(driver.cuDeviceGet(&value, -1), CUDA_ERROR_INVALID_DEVICE);
	assert_int_equal(driver.cuDeviceGetPCIBusId(text, sizeof(text), 1), CUDA_SUCCESS);
	assert_string_equal(text, "0000:65:00.0");
	assert_int_equal(
		driver.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 1),
		CUDA_SUCCESS);
	assert_int_equal(value, 0x65);
	assert_int_equal(driver.cuDeviceGetByPCIBusId(&value, "0000:65:00.0"),
			 CUDA_SUCCESS);
	assert_int_equal(value, 1);
	/* Each has its own attributes. */
	fake->device[1].dmabuf = false;
	for (int device = 0; device < 2; device++) {
		assert_int_equal(
			driver.cuDeviceGetAttribute(
				&value, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, device),
			CUDA_SUCCESS);
		assert_int_equal(value, device == 0);
	}
	fake->version = 11060;
	assert_int_equal(driver.cuDeviceGetAttribute(
				 &value, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 0),
			 CUDA_ERROR_INVALID_VALUE);
}

static void older_versions_lack_newer_functions(void **state)
{
	CUdriverProcAddressQueryResult status;
	const char *name = "cuMemGetHandleForAddressRange";
	void *function;

	(void)state;
	assert_non_null(dlsym(driver.library, name));
	fake->version = 11060;
	assert_null(dlsym(driver.library, name));
	assert_null(dlsym(driver.library, "cuGetProcAddress_v2"));
	assert_non_null(dlsym(driver.library, "cuMemAlloc_v2"));
	assert_int_equal(driver.cuGetProcAddress(name, &function, 11060, 0),
			 CUDA_ERROR_NOT_FOUND);
	assert_int_equal(driver.cuGetProcAddress(name, &function, 11070, 0),
			 CUDA_ERROR_INVALID_VALUE);
	fake->version = 12000;
	assert_int_equal(driver.cuGetProcAddress_v2(name, &function, 11060, 0, &status),
			 CUDA_SUCCESS);
	assert_null(function);
	assert_int_equal(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
	assert_int_equal(
		driver.cuGetProcAddress_v2("cuNothing", &function, 12000, 0, &status),
		CUDA_SUCCESS);
	assert_null(function);
	assert_int_equal(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

/* A caller that names a newer version gets functions with other parameters. */
static void version_selects_the_form_of_a_function(void **state)
{
	void *old, *new;

	(void)state;
	assert_int_equal(
		driver.cuGetProcAddress_v2("cuCtxSynchronize", &old, 12080, 0, NULL),
		CUDA_SUCCESS);
	assert_int_equal(
		driver.cuGetProcAddress_v2("cuCtxSynchronize", &new, 13000, 0, NULL),
		CUDA_SUCCESS);
	assert_ptr_equal(old, *(void **)&driver.cuCtxSynchronize);
	assert_ptr_equal(new, *(void **)&driver.cuCtxSynchronize_v2);
}

static void requires_a_current_context(void **state)
{
	CUdeviceptr address = allocate(4096), base;
	CUcontext popped;
	int fd, device;
	char byte = 1;

	(void)state;
	assert_int_equal(driver.cuCtxPopCurrent_v2(&popped), CUDA_SUCCESS);
	assert_ptr_equal(popped, context);
	assert_int_equal(driver.cuCtxPopCurrent_v2(&popped), CUDA_ERROR_INVALID_CONTEXT);
	assert_int_equal(driver.cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
	assert_int_equal(driver.cuMemAlloc_v2(&base, 1), CUDA_ERROR_INVALID_CONTEXT);
	assert_int_equal(driver.cuMemFree_v2(address), CUDA_ERROR_INVALID_CONTEXT);
	assert_int_equal(driver.cuMemcpyHtoD_v2(address, &byte, 1),
			 CUDA_ERROR_INVALID_CONTEXT);
	assert_int_equal(driver.cuMemGetAddressRange_v2(&base, NULL, address),
			 CUDA_ERROR_INVALID_CONTEXT);
	assert_int_equal(
		driver.cuMemGetHandleForAddressRange(&fd, address & ~4095ull, 4096, 1, 0),
		CUDA_ERROR_INVALID_CONTEXT);
	assert_int_equal(driver.cuCtxPushCurrent_v2((CUcontext)fake),
			 CUDA_ERROR_INVALID_CONTEXT);
	assert_int_equal(driver.cuCtxSetCurrent(context), CUDA_SUCCESS);
	release(address);
}

static void contexts_end_with_their_memory(void **state)
{
	CUcontext own;
	CUdeviceptr address;

	(void)state;
	assert_int_equal(driver.cuCtxCreate_v2(&own, 0, 0), CUDA_SUCCESS);
	assert_int_equal(fake->current, 2);
	address = allocate(3 * MIB);
	assert_int_equal(fake->live[FAKE_CUDA_DEVICE_MEMORY], 1);
	assert_int_equal(driver.cuCtxDestroy_v2(own), CUDA_SUCCESS);
	assert_int_equal(fake->current, 1);
	assert_int_equal(fake->live[FAKE_CUDA_DEVICE_MEMORY], 0);
	assert_int_equal(driver.cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(driver.cuCtxPushCurrent_v2(own),
			 CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

static void *leave_context(void *unused)
{
	(void)unused;
	assert_int_equal(driver.cuCtxPushCurrent_v2(context), CUDA_SUCCESS);
	return NULL;
}

static void contexts_left_by_threads_are_counted(void **state)
{
	pthread_t thread;

	(void)state;
	assert_int_equal(fake->abandoned, 0);
	assert_int_equal(pthread_create(&thread, NULL, leave_context, NULL), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(fake->abandoned, 1);
	assert_int_equal(fake->current, 1);
}

static void named_calls_can_be_made_to_fail(void **state)
{
	struct fake_cuda_call *call = fake_cuda_call(fake, "cuMemAlloc");
	CUdeviceptr first, second;

	(void)state;
	assert_non_null(call);
	assert_null(fake_cuda_call(fake, "cuMemAlloc_v2"));
	*call = (struct fake_cuda_call){ "cuMemAlloc", 2, 1, CUDA_ERROR_UNKNOWN, 0 };
	first = allocate(1);
	for (int i = 0; i < 2; i++)
		assert_int_equal(driver.cuMemAlloc_v2(&second, 1), CUDA_ERROR_UNKNOWN);
	second = allocate(1);
	assert_int_equal(call->calls, 4);
	assert_int_equal(fake->live[FAKE_CUDA_DEVICE_MEMORY], 2);
	release(first);
	release(second);
}

static void lost_devices_stay_lost(void **state)
{
	CUdeviceptr address = allocate(4096);
	char bytes[16] = "";
	CUcontext other;
	unsigned int type;

	(void)state;
	fake->device[0].lost_in = 2;
	fake->device[0].lost_result = CUDA_ERROR_ECC_UNCORRECTABLE;
	assert_int_equal(driver.cuMemcpyHtoD_v2(address, bytes, 16), CUDA_SUCCESS);
	assert_int_equal(driver.cuMemcpyHtoD_v2(address, bytes, 16),
			 CUDA_ERROR_ECC_UNCORRECTABLE);
	assert_int_equal(driver.cuCtxSynchronize(), CUDA_ERROR_ECC_UNCORRECTABLE);
	assert_int_equal(driver.cuMemFree_v2(address), CUDA_ERROR_ECC_UNCORRECTABLE);
	assert_int_equal(driver.cuCtxCreate_v2(&other, 0, 0),
			 CUDA_ERROR_ECC_UNCORRECTABLE);
	/* Calls that need no device work. */
	assert_int_equal(driver.cuCtxPushCurrent_v2(context), CUDA_SUCCESS);
	assert_int_equal(driver.cuCtxPopCurrent_v2(NULL), CUDA_SUCCESS);
	assert_int_equal(driver.cuPointerGetAttribute(
				 &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address),
			 CUDA_SUCCESS);
	/* The other device still works. */
	assert_int_equal(driver.cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
	assert_int_equal(driver.cuCtxPushCurrent_v2(other), CUDA_SUCCESS);
	assert_int_equal(driver.cuCtxSynchronize(), CUDA_SUCCESS);
	assert_int_equal(driver.cuCtxPopCurrent_v2(NULL), CUDA_SUCCESS);
	assert_int_equal(driver.cuDevicePrimaryCtxRelease_v2(1), CUDA_SUCCESS);
	fake->restore();
	release(address);
}

/* Returns 0, or the signal that ended the child. */
static int run_child(void (*body)(void))
{
	pid_t child = fork();
	int status;

	assert_true(child >= 0);
	if (child == 0) {
		/* cmocka would go on with the tests. */
		signal(SIGSEGV, SIG_DFL);
		signal(SIGABRT, SIG_DFL);
		if (!freopen("/dev/null", "w", stderr))
			_exit(2);
		body();
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	if (WIFSIGNALED(status))
		return WTERMSIG(status);
	assert_int_equal(WEXITSTATUS(status), 0);
	return 0;
}

static void call_in_child(void)
{
	CUdeviceptr address;
	const char *name;
	int count;

	if (driver.cuInit(0) != CUDA_ERROR_NOT_INITIALIZED ||
	    driver.cuDeviceGetCount(&count) != CUDA_ERROR_NOT_INITIALIZED ||
	    driver.cuMemAlloc_v2(&address, 1) != CUDA_ERROR_NOT_INITIALIZED ||
	    driver.cuCtxPopCurrent_v2(NULL) != CUDA_ERROR_NOT_INITIALIZED ||
	    driver.cuGetErrorName(3, &name) != CUDA_SUCCESS)
		_exit(1);
}

static void children_have_no_driver(void **state)
{
	(void)state;
	assert_int_equal(run_child(call_in_child), 0);
}

static void misread_environment(void)
{
	setenv("FAKE_CUDA_PCIE", "perhaps", 1);
	fake->restore();
}

static void environment_configures_the_fake(void **state)
{
	(void)state;
	setenv("FAKE_CUDA_VERSION", "12040", 1);
	setenv("FAKE_CUDA_PCIE", "required", 1);
	setenv("FAKE_CUDA_BAR", "0x100000", 1);
	setenv("FAKE_CUDA_PCI", "0000:01:00.0,0000:02:00.0", 1);
	setenv("FAKE_CUDA_FAIL", "cuMemAlloc:3:2,cuInit:1:999:5", 1);
	setenv("FAKE_CUDA_LOST", "1:5:46", 1);
	fake->restore();
	unsetenv("FAKE_CUDA_VERSION");
	unsetenv("FAKE_CUDA_PCIE");
	unsetenv("FAKE_CUDA_BAR");
	unsetenv("FAKE_CUDA_PCI");
	unsetenv("FAKE_CUDA_FAIL");
	unsetenv("FAKE_CUDA_LOST");
	assert_int_equal(fake->version, 12040);
	assert_int_equal(fake->device[1].pcie, FAKE_CUDA_PCIE_REQUIRED);
	assert_int_equal(fake->device[1].bar, MIB);
	assert_string_equal(fake->device[1].pci, "0000:02:00.0");
	assert_int_equal(fake_cuda_call(fake, "cuMemAlloc")->fail_in, 3);
	assert_int_equal(fake_cuda_call(fake, "cuMemAlloc")->fail_more, 0);
	assert_int_equal(fake_cuda_call(fake, "cuInit")->fail_result, 999);
	assert_int_equal(fake_cuda_call(fake, "cuInit")->fail_more, 5);
	assert_int_equal(fake->device[1].lost_in, 5);
	assert_int_equal(fake->device[1].lost_result, 46);
	assert_int_equal(run_child(misread_environment), SIGABRT);
}

static CUdeviceptr touched;

static void touch_memory(void)
{
	/* A copy that was forgotten ends like this. */
	*(volatile char *)(uintptr_t)touched = 1;
}

static void device_memory_cannot_be_touched(void **state)
{
	CUdeviceptr managed;
	void *host;

	(void)state;
	for (int i = 0; i < 2; i++) {
		touched = allocate(i ? 3 * MIB : 100);
		assert_int_equal(run_child(touch_memory), SIGSEGV);
		release(touched);
	}
	assert_int_equal(driver.cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL),
			 CUDA_SUCCESS);
	touched = managed;
	touch_memory();
	release(managed);
	assert_int_equal(driver.cuMemHostAlloc(&host, 4096, 0), CUDA_SUCCESS);
	touched = (uintptr_t)host;
	touch_memory();
	assert_int_equal(driver.cuMemFreeHost(host), CUDA_SUCCESS);
	touched = (uintptr_t)host;
	assert_int_equal(run_child(touch_memory), SIGSEGV);
	fake->peer_memory = true;
	touched = allocate(100);
	touch_memory();
	release(touched);
	assert_int_equal(run_child(touch_memory), SIGSEGV);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(has_the_abi_of_cuda_h),
		cmocka_unit_test(requires_initialisation),
		fixture_test(lists_its_devices),
		fixture_test(older_versions_lack_newer_functions),
		fixture_test(version_selects_the_form_of_a_function),
		fixture_test(requires_a_current_context),
		fixture_test(contexts_end_with_their_memory),
		fixture_test(contexts_left_by_threads_are_counted),
		fixture_test(named_calls_can_be_made_to_fail),
		fixture_test(lost_devices_stay_lost),
		fixture_test(children_have_no_driver),
		fixture_test(environment_configures_the_fake),
		fixture_test(device_memory_cannot_be_touched),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
