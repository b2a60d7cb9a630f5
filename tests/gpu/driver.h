/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_GPU_DRIVER_H
#define TESTS_GPU_DRIVER_H

/*
 * The CUDA driver as an application uses it, next to pier. The programs of this folder
 * are linked with libpier only, and open the driver as it does.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <pier/pier.h>

/* Types, values and forms of the calls. They are compared with cuda.h. */
#include "backends/cuda/api.h"

typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;

enum {
	GPU_MIB = 1 << 20,
	GPU_BLOCK = 2 << 20, /* granularity in which the driver maps device memory */
	GPU_PATIENT = 60000, /* milliseconds */
	GPU_SKIPPED = 77,    /* exit status of a skip for meson and tests/run */

	GPU_MEM_ATTACH_GLOBAL = 1,
	GPU_ATTRIBUTE_COMPUTE_MAJOR = 75,
	GPU_ATTRIBUTE_COMPUTE_MINOR = 76,
	GPU_ATTRIBUTE_MANAGED_MEMORY = 83,
	GPU_ATTRIBUTE_MEMORY_POOLS = 115,
};

/* Functions that the backend does not call: name, symbol, parameters. */
#define GPU_CALLS(X)                                                                \
	X(cuCtxGetCurrent, "cuCtxGetCurrent", (CUcontext * ret_context))            \
	X(cuCtxCreate, "cuCtxCreate_v2",                                            \
	  (CUcontext * ret_context, unsigned int flags, CUdevice device))           \
	X(cuCtxDestroy, "cuCtxDestroy_v2", (CUcontext context))                     \
	X(cuDeviceTotalMem, "cuDeviceTotalMem_v2",                                  \
	  (size_t * ret_bytes, CUdevice device))                                    \
	X(cuMemsetD8, "cuMemsetD8_v2",                                              \
	  (CUdeviceptr address, unsigned char value, size_t length))                \
	X(cuMemcpyHtoD, "cuMemcpyHtoD_v2",                                          \
	  (CUdeviceptr destination, const void *source, size_t length))             \
	X(cuMemcpyDtoH, "cuMemcpyDtoH_v2",                                          \
	  (void *destination, CUdeviceptr source, size_t length))                   \
	X(cuMemAllocManaged, "cuMemAllocManaged",                                   \
	  (CUdeviceptr * ret_address, size_t length, unsigned int flags))           \
	X(cuMemAllocAsync, "cuMemAllocAsync",                                       \
	  (CUdeviceptr * ret_address, size_t length, CUstream stream))              \
	X(cuMemFreeAsync, "cuMemFreeAsync", (CUdeviceptr address, CUstream stream)) \
	X(cuModuleLoadData, "cuModuleLoadData",                                     \
	  (CUmodule * ret_module, const void *ptx))                                 \
	X(cuModuleGetFunction, "cuModuleGetFunction",                               \
	  (CUfunction * ret_function, CUmodule module, const char *name))           \
	X(cuLaunchKernel, "cuLaunchKernel",                                         \
	  (CUfunction function, unsigned int grid_x, unsigned int grid_y,           \
	   unsigned int grid_z, unsigned int block_x, unsigned int block_y,         \
	   unsigned int block_z, unsigned int shared, CUstream stream,              \
	   void **parameters, void **extra))

#define GPU_MEMBER(name, symbol, parameters) CUresult(*name) parameters;
struct gpu {
	struct pier_cu_calls call; /* functions that the driver lacks are NULL */
	struct {
		GPU_CALLS(GPU_MEMBER)
	} more;
	int version;	   /* 12080 is CUDA 12.8 */
	int count;	   /* number of devices */
	int device;	   /* the tested device: PIER_GPU_DEVICE, or 0 */
	CUcontext context; /* its primary context; not current */
	bool fake;
	bool silent;		 /* gpu_say() prints nothing */
	struct pier_device *nic; /* soft0, opened by gpu_open_nic() */
	struct pier_pd *pd;
};
#undef GPU_MEMBER

extern struct gpu gpu;

/*
 * Open the driver and the device. If there is none, skips the whole program: prints the
 * reason and exits with GPU_SKIPPED. A real driver takes a while to open.
 */
void gpu_open(void);

/*
 * Make the device's context current for the test's own calls of the driver. pier is
 * called without one.
 */
void gpu_push(void);
void gpu_pop(void);

/* A call that must succeed with the context current; otherwise the test fails. */
#define gpu_must(call) gpu_check((call), #call)
void gpu_check(CUresult error, const char *call);

/* "CUDA_ERROR_NOT_SUPPORTED" and the like, or "ok". Valid until the next call. */
const char *gpu_error(CUresult error);
int gpu_attribute(CUdevice_attribute attribute);

/* "cuda:N" followed by `rest`. Valid until the next call. */
const char *gpu_spec(const char *rest);

/* Prints a line for the record, where machines may differ. */
void gpu_say(const char *format, ...) PIER_PRINTF(1, 2);
/* Skips a test that cannot run here. */
void gpu_skip(const char *format, ...) PIER_PRINTF(1, 2);

/*
 * The driver opens files at the first use of many features, and keeps them. The body
 * therefore runs once first, and is checked for leaks in two more runs.
 */
void gpu_run_steady(void (*body)(void *argument), void *argument);

/* Group setup of cmocka: opens soft0 and a protection domain. */
int gpu_open_nic(void **state);
int gpu_close_nic(void **state);

/* Setup and teardown of cmocka: no object of pier and no current context may be left. */
int gpu_setup(void **state);
int gpu_teardown(void **state);

#endif
