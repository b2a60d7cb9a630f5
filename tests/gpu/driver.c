/* SPDX-License-Identifier: BSD-3-Clause */
#include "../support/cmocka.h"
#include "../support/census.h"
#include "../support/expect.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "driver.h"

struct gpu gpu;

/* Prints a TAP plan without cases, and the reason for people. */
static void skip_program(const char *reason)
{
	printf("skip: %s\n1..0 # skip %s\n", reason, reason);
	exit(GPU_SKIPPED);
}

static void find_calls(void *library)
{
#define FIND(name, since, symbol, parameters) \
	*(void **)&gpu.call.name = dlsym(library, symbol);
	PIER_CU_CALLS(FIND)
#undef FIND
#define FIND(name, symbol, parameters) *(void **)&gpu.more.name = dlsym(library, symbol);
	GPU_CALLS(FIND)
#undef FIND
	gpu.fake = dlsym(library, "fake_cuda_control") != NULL;
}

static void open_device(void)
{
	const char *chosen = getenv("PIER_GPU_DEVICE");
	char reason[128];
	CUresult error = gpu.call.cuInit(0);

	if (error == CUDA_SUCCESS)
		error = gpu.call.cuDeviceGetCount(&gpu.count);
	if (error != CUDA_SUCCESS || gpu.count == 0) {
		snprintf(reason, sizeof(reason), "no CUDA device: cuInit gives %s%s",
			 gpu_error(error),
			 access("/dev/nvidiactl", F_OK) ? ", no /dev/nvidiactl" : "");
		skip_program(reason);
	}
	gpu.device = chosen ? atoi(chosen) : 0;
	if (gpu.device < 0 || gpu.device >= gpu.count ||
	    gpu.call.cuDevicePrimaryCtxRetain(&gpu.context, gpu.device) != CUDA_SUCCESS) {
		fprintf(stderr, "PIER_GPU_DEVICE=%s: no such device, or no context\n",
			chosen ? chosen : "0");
		exit(1);
	}
}

void gpu_open(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	char reason[256];

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!library) {
		snprintf(reason, sizeof(reason), "no NVIDIA driver: %s%s", dlerror(),
			 access("/dev/nvidiactl", F_OK) ? "; no /dev/nvidiactl" : "");
		skip_program(reason);
	}
	find_calls(library);
	if (!gpu.call.cuInit || gpu.call.cuDriverGetVersion(&gpu.version) != CUDA_SUCCESS)
		skip_program("libcuda.so.1 is not the CUDA driver");
	open_device();
}

void gpu_push(void)
{
	gpu_must(gpu.call.cuCtxPushCurrent(gpu.context));
}

void gpu_pop(void)
{
	CUcontext context;

	gpu_must(gpu.call.cuCtxPopCurrent(&context));
}

void gpu_check(CUresult error, const char *call)
{
	if (error != CUDA_SUCCESS)
		fail_msg("%s: %s", call, gpu_error(error));
}

const char *gpu_error(CUresult error)
{
	static char number[24];
	const char *name = NULL;

	if (error == CUDA_SUCCESS)
		return "ok";
	if (gpu.call.cuGetErrorName &&
	    gpu.call.cuGetErrorName(error, &name) == CUDA_SUCCESS && name)
		return name;
	snprintf(number, sizeof(number), "error %u", error);
	return number;
}

int gpu_attribute(CUdevice_attribute attribute)
{
	int value = 0;

	/* A driver that does not support the attribute counts as lacking the feature. */
	if (gpu.call.cuDeviceGetAttribute(&value, attribute, gpu.device) != CUDA_SUCCESS)
		return 0;
	return value;
}

const char *gpu_spec(const char *rest)
{
	static char spec[64];

	snprintf(spec, sizeof(spec), "cuda:%d%s", gpu.device, rest);
	return spec;
}

void gpu_say(const char *format, ...)
{
	va_list args;

	if (gpu.silent)
		return;
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
}

void gpu_skip(const char *format, ...)
{
	char reason[256];
	va_list args;

	va_start(args, format);
	vsnprintf(reason, sizeof(reason), format, args);
	va_end(args);
	print_message("skip: %s\n", reason);
	skip();
}

void gpu_run_steady(void (*body)(void *argument), void *argument)
{
	struct test_census census;

	body(argument);
	census = test_take_census();
	gpu.silent = true;
	for (int i = 0; i < 2; i++)
		body(argument);
	gpu.silent = false;
	test_assert_census(&census);
}

int gpu_open_nic(void **state)
{
	(void)state;
	expect_ok(pier_open_device("soft0", &gpu.nic));
	expect_ok(pier_alloc_pd(gpu.nic, &gpu.pd));
	return 0;
}

int gpu_close_nic(void **state)
{
	(void)state;
	expect_ok(pier_dealloc_pd(gpu.pd));
	expect_ok(pier_close_device(gpu.nic));
	return 0;
}

static struct test_census before;

static void assert_nothing_current(void)
{
	CUcontext current = NULL;

	assert_int_equal(gpu.more.cuCtxGetCurrent(&current), CUDA_SUCCESS);
	assert_null(current);
}

int gpu_setup(void **state)
{
	(void)state;
	gpu.silent = false;
	before = test_take_census();
	assert_nothing_current();
	return 0;
}

/* gpu_run_steady() checks the fds. */
int gpu_teardown(void **state)
{
	(void)state;
	before.fds = test_count_fds();
	test_assert_census(&before);
	assert_nothing_current();
	return 0;
}
