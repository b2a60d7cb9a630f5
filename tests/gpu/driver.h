/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_GPU_DRIVER_H
#define TESTS_GPU_DRIVER_H

/*
 * The driver of a GPU as an application uses it, next to pier: CUDA's, or HIP with
 * PIER_GPU_BACKEND=hip. The programs of this folder are linked with libpier only, and
 * open the driver as it does.
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

/*
 * Calls that CUDA and HIP both have, with the same parameters: name, CUDA's symbol,
 * HIP's, parameters. Addresses and handles are numbers or pointers of 64 bits. A symbol
 * that is no identifier is missing there.
 */
#define GPU_BOTH(X)                                                                     \
	X(alloc, "cuMemAlloc_v2", "hipMalloc", (uint64_t * ret_address, size_t length)) \
	X(free, "cuMemFree_v2", "hipFree", (uint64_t address))                          \
	X(find_range, "cuMemGetAddressRange_v2", "hipMemGetAddressRange",               \
	  (uint64_t * ret_start, size_t * ret_length, uint64_t address))                \
	X(alloc_managed, "cuMemAllocManaged", "hipMallocManaged",                       \
	  (uint64_t * ret_address, size_t length, unsigned int flags))                  \
	X(alloc_async, "cuMemAllocAsync", "hipMallocAsync",                             \
	  (uint64_t * ret_address, size_t length, void *stream))                        \
	X(free_async, "cuMemFreeAsync", "hipFreeAsync",                                 \
	  (uint64_t address, void *stream))                                             \
	X(synchronize, "cuStreamSynchronize", "hipStreamSynchronize", (void *stream))   \
	X(alloc_fine, "-", "hipExtMallocWithFlags",                                     \
	  (uint64_t * ret_address, size_t length, unsigned int flags))                  \
	X(alloc_host, "cuMemHostAlloc", "hipHostMalloc",                                \
	  (uint64_t * ret_address, size_t length, unsigned int flags))                  \
	X(free_host, "cuMemFreeHost", "hipHostFree", (uint64_t address))                \
	X(register_host, "cuMemHostRegister_v2", "hipHostRegister",                     \
	  (void *memory, size_t length, unsigned int flags))                            \
	X(unregister_host, "cuMemHostUnregister", "hipHostUnregister", (void *memory))  \
	X(reserve, "cuMemAddressReserve", "hipMemAddressReserve",                       \
	  (uint64_t * ret_address, size_t length, size_t alignment, uint64_t hint,      \
	   unsigned long long flags))                                                   \
	X(unreserve, "cuMemAddressFree", "hipMemAddressFree",                           \
	  (uint64_t address, size_t length))                                            \
	X(create, "cuMemCreate", "hipMemCreate",                                        \
	  (uint64_t * ret_handle, size_t length, const CUmemAllocationProp *prop,       \
	   unsigned long long flags))                                                   \
	X(release, "cuMemRelease", "hipMemRelease", (uint64_t handle))                  \
	X(map, "cuMemMap", "hipMemMap",                                                 \
	  (uint64_t address, size_t length, size_t offset, uint64_t handle,             \
	   unsigned long long flags))                                                   \
	X(unmap, "cuMemUnmap", "hipMemUnmap", (uint64_t address, size_t length))        \
	X(set_access, "cuMemSetAccess", "hipMemSetAccess",                              \
	  (uint64_t address, size_t length, const CUmemAccessDesc *access,              \
	   size_t count))                                                               \
	X(get_ipc, "cuIpcGetMemHandle", "hipIpcGetMemHandle",                           \
	  (struct gpu_ipc * ret_handle, uint64_t address))                              \
	X(open_ipc, "cuIpcOpenMemHandle_v2", "hipIpcOpenMemHandle",                     \
	  (uint64_t * ret_address, struct gpu_ipc handle, unsigned int flags))          \
	X(close_ipc, "cuIpcCloseMemHandle", "hipIpcCloseMemHandle", (uint64_t address))

/* CUipcMemHandle, hipIpcMemHandle_t */
struct gpu_ipc {
	char reserved[64];
};

/* What differs between the vendors. Functions that may be NULL say so. */
struct gpu_vendor {
	const char *name; /* of pier's backend */
	/*
	 * Opens the driver and the device, finds the calls, and sets the members of
	 * `gpu`. Skips the program if there is none.
	 */
	void (*open)(void);
	void (*push)(void);
	void (*pop)(void);
	void (*check_clean)(void); /* no context was left; NULL: there are none */
	const char *(*error)(unsigned int error);
	/* The bare driver's dma-buf of whole pages. */
	unsigned int (*export)(uint64_t address, size_t length, enum pier_mapping mapping,
			       int *ret_fd);
	void (*say_facts)(void); /* for docs/hardware.md */
};

extern const struct gpu_vendor gpu_cuda, gpu_hip;

#define GPU_MEMBER(name, symbol, parameters)	     CUresult(*name) parameters;
#define GPU_BOTH_MEMBER(name, cuda, hip, parameters) unsigned int(*name) parameters;
struct gpu {
	const struct gpu_vendor *vendor;
	struct {
		GPU_BOTH(GPU_BOTH_MEMBER)
	} both;
	/* CUDA's alone. */
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
	struct pier_device *nic; /* opened by gpu_open_nic() */
	struct pier_pd *pd;
};
#undef GPU_MEMBER
#undef GPU_BOTH_MEMBER

extern struct gpu gpu;

/*
 * Open the driver and the device. If there is none, skips the whole program: prints the
 * reason and exits with GPU_SKIPPED. A real driver takes a while to open.
 */
void gpu_open(void);

/* For programs of CUDA alone, which are skipped if another driver was asked for. */
void gpu_open_cuda(void);

/* For gpu_vendor: prints the reason and exits. */
void gpu_skip_program(const char *reason) __attribute__((noreturn));

/* For gpu_vendor: sets gpu.device from PIER_GPU_DEVICE, or exits with an error. */
void gpu_choose_device(void);

/*
 * Make the device's context current for the test's own calls of the driver. pier is
 * called without one.
 */
void gpu_push(void);
void gpu_pop(void);

/* A call that must succeed with the context current; otherwise the test fails. */
#define gpu_must(call) gpu_check((call), #call)
void gpu_check(unsigned int error, const char *call);

/* "CUDA_ERROR_NOT_SUPPORTED" and the like, or "ok". Valid until the next call. */
const char *gpu_error(unsigned int error);
int gpu_attribute(CUdevice_attribute attribute);

/* "cuda:N" or "hip:N", followed by `rest`. Valid until the next call. */
const char *gpu_spec(const char *rest);

/* Prints a line for the record, where machines may differ. */
void gpu_say(const char *format, ...) PIER_PRINTF(1, 2);
/* The first line of a file that contains `part`, without its newline, or "". */
void gpu_read_line(const char *path, const char *part, char *ret_line, size_t size);
/* Prints the sizes of a PCI device's BARs. */
void gpu_say_bars(const char *pci);
/* Skips a test that cannot run here. */
void gpu_skip(const char *format, ...) PIER_PRINTF(1, 2);

/*
 * The driver opens files at the first use of many features, and keeps them. The body
 * therefore runs once first, and is checked for leaks in two more runs.
 */
void gpu_run_steady(void (*body)(void *argument), void *argument);

/*
 * Open the NIC: PIER_GPU_NIC; else the one that pier chooses, or soft0 if there is none.
 * With `peer`, PIER_GPU_PEER_NIC if it is set. Returns 0 or a negative errno.
 */
int gpu_open_device(bool peer, struct pier_device **ret_device);

/* Group setup of cmocka: opens the NIC and a protection domain. */
int gpu_open_nic(void **state);
int gpu_close_nic(void **state);

/* Setup and teardown of cmocka: no object of pier and no current context may be left. */
int gpu_setup(void **state);
int gpu_teardown(void **state);

#endif
