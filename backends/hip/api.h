/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_HIP_API_H
#define PIER_BACKENDS_HIP_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The part of AMD's HIP and HSA runtimes that the backend uses, declared here so that
 * pier builds without their headers. If those are installed,
 * tests/unit/backends/hip/headers.c compares. The backend avoids everything whose layout
 * or numbers changed between versions of HIP, such as struct hipPointerAttribute_t and
 * enum hipMemoryType, from 5 to 6.
 */

struct ihipStream_t;
struct ihipEvent_t;

/* hipError_t: the values that the code distinguishes. The others are in load.c. */
enum {
	PIER_HIP_SUCCESS = 0,
	PIER_HIP_INVALID_VALUE = 1,
	PIER_HIP_OUT_OF_MEMORY = 2,
	PIER_HIP_INVALID_DEVICE_POINTER = 17,
	PIER_HIP_NO_DEVICE = 100,
	PIER_HIP_INVALID_HANDLE = 400,
	PIER_HIP_NOT_FOUND = 500,
	PIER_HIP_NOT_READY = 600,
	PIER_HIP_CONTEXT_IS_DESTROYED = 709,
};

/*
 * hipMemcpyKind, flags of hipExtMallocWithFlags(), hipHostRegister(),
 * hipStreamCreateWithFlags() and hipEventCreateWithFlags(), and one of
 * hipStreamCaptureMode.
 */
enum {
	PIER_HIP_HOST_TO_DEVICE = 1,
	PIER_HIP_DEVICE_TO_HOST = 2,
	PIER_HIP_FINE_GRAINED = 1,
	PIER_HIP_REGISTER_PORTABLE = 1,
	PIER_HIP_STREAM_NON_BLOCKING = 1,
	PIER_HIP_EVENT_BLOCKING_SYNC = 1,
	PIER_HIP_EVENT_DISABLE_TIMING = 2,
	PIER_HIP_CAPTURE_RELAXED = 2,
};

/*
 * hipPointer_attribute, and the type that hipPointerGetAttribute() writes
 * (ihipPointerGetAttributes() in clr). RANGE_SIZE is missing: it writes only 32 bits of
 * the size.
 */
enum {
	PIER_HIP_BUFFER_ID = 7,	     /* uint32_t: see read_number() in memory.c */
	PIER_HIP_IS_MANAGED = 8,     /* bool */
	PIER_HIP_DEVICE_ORDINAL = 9, /* int */
};

/* hipDeviceAttribute_t */
enum {
	PIER_HIP_HDP_FLUSH = 10005, /* a pointer: hipDeviceGetAttribute() in clr */
};

/* hsa_status_t */
enum {
	PIER_HSA_SUCCESS = 0,
	PIER_HSA_NOT_SUPPORTED = 47,
	PIER_HSA_ERROR = 0x1000,
	PIER_HSA_INVALID_ARGUMENT = 0x1001,
	PIER_HSA_INVALID_ALLOCATION = 0x1003,
	PIER_HSA_INVALID_AGENT = 0x1004,
	PIER_HSA_OUT_OF_RESOURCES = 0x1008,
	PIER_HSA_NOT_INITIALIZED = 0x100B,
	PIER_HSA_INCOMPATIBLE_ARGUMENTS = 0x100D,
};

/*
 * hsa_amd_pointer_type_t. VIRTUAL came with version 1.12 of HSA's AMD extensions
 * (HSA_EXT_POINTER_TYPE_HSA_VMEM in hsa_ext_amd.h). Before, as in ROCm 7.0, memory that
 * is mapped into a reservation has the type of the reservation: see
 * hsakmt_fmm_get_mem_info() in libhsakmt's fmm.c.
 */
enum {
	PIER_HSA_POINTER_UNKNOWN = 0,
	PIER_HSA_POINTER_HSA = 1,
	PIER_HSA_POINTER_LOCKED = 2,
	PIER_HSA_POINTER_GRAPHICS = 3,
	PIER_HSA_POINTER_IPC = 4,
	PIER_HSA_POINTER_RESERVED = 5,
	PIER_HSA_POINTER_VIRTUAL = 6,
};

enum {
	/* hsa_agent_info_t */
	PIER_HSA_AGENT_DEVICE = 17, /* hsa_device_type_t, an int */
	/* hsa_device_type_t */
	PIER_HSA_DEVICE_CPU = 0,
	PIER_HSA_DEVICE_GPU = 1,
	/* hsa_system_info_t; since version 1.1 of the AMD extensions */
	PIER_HSA_SYSTEM_DMABUF = 0x204, /* bool */
	/* hsa_amd_memory_pool_global_flag_t */
	PIER_HSA_FINE_GRAINED = 2,
	/* hsa_amd_dma_buf_mapping_type_t; since version 1.9 */
	PIER_HSA_MAPPING_NONE = 0,
	PIER_HSA_MAPPING_PCIE = 1,
};

/* hsa_agent_t */
struct pier_hsa_agent {
	uint64_t handle;
};

/* hsa_amd_pointer_info_t. Newer versions only append to it, and respect `size`. */
struct pier_hsa_pointer_info {
	uint32_t size;
	uint32_t type;
	void *agent_base;
	void *host_base;
	size_t length;
	void *user_data;
	struct pier_hsa_agent owner;
	uint32_t global_flags;
};

/* hsa_amd_vmem_alloc_handle_t */
struct pier_hsa_vmem_handle {
	uint64_t handle;
};

/* X(name, parameters): required functions, which return hipError_t. */
#define PIER_HIP_FUNCTIONS(X)                                                            \
	X(hipRuntimeGetVersion, (int *version))                                          \
	X(hipGetDeviceCount, (int *count))                                               \
	X(hipGetDevice, (int *device))                                                   \
	X(hipSetDevice, (int device))                                                    \
	X(hipGetLastError, (void))                                                       \
	X(hipPeekAtLastError, (void))                                                    \
	X(hipDeviceGetName, (char *name, int length, int device))                        \
	X(hipDeviceGetPCIBusId, (char *id, int length, int device))                      \
	X(hipDeviceTotalMem, (size_t * total, int device))                               \
	X(hipDeviceGetAttribute, (int *value, unsigned int attribute, int device))       \
	X(hipMemGetInfo, (size_t * free, size_t * total))                                \
	X(hipMalloc, (void **pointer, size_t size))                                      \
	X(hipFree, (void *pointer))                                                      \
	X(hipHostMalloc, (void **pointer, size_t size, unsigned int flags))              \
	X(hipHostFree, (void *pointer))                                                  \
	X(hipHostRegister, (void *pointer, size_t size, unsigned int flags))             \
	X(hipHostUnregister, (void *pointer))                                            \
	X(hipMemcpyAsync, (void *destination, const void *source, size_t size,           \
			   unsigned int kind, struct ihipStream_t *stream))              \
	X(hipMemsetAsync,                                                                \
	  (void *destination, int value, size_t size, struct ihipStream_t *stream))      \
	X(hipStreamCreateWithFlags, (struct ihipStream_t * *stream, unsigned int flags)) \
	X(hipStreamDestroy, (struct ihipStream_t * stream))                              \
	X(hipStreamSynchronize, (struct ihipStream_t * stream))                          \
	X(hipEventCreateWithFlags, (struct ihipEvent_t * *event, unsigned int flags))    \
	X(hipEventDestroy, (struct ihipEvent_t * event))                                 \
	X(hipEventRecord, (struct ihipEvent_t * event, struct ihipStream_t * stream))    \
	X(hipEventQuery, (struct ihipEvent_t * event))                                   \
	X(hipEventSynchronize, (struct ihipEvent_t * event))                             \
	X(hipMemGetAddressRange, (void **base, size_t *size, void *pointer))             \
	X(hipPointerGetAttribute, (void *data, unsigned int attribute, void *pointer))

/* Functions that some versions lack: NULL. */
#define PIER_HIP_OPTIONAL(X)                                                        \
	X(hipExtMallocWithFlags, (void **pointer, size_t size, unsigned int flags)) \
	X(hipThreadExchangeStreamCaptureMode, (unsigned int *mode))

/* Functions that return hsa_status_t. */
#define PIER_HSA_FUNCTIONS(X)                                                 \
	X(hsa_init, (void))                                                   \
	X(hsa_shut_down, (void))                                              \
	X(hsa_system_get_info, (unsigned int attribute, void *value))         \
	X(hsa_agent_get_info,                                                 \
	  (struct pier_hsa_agent agent, unsigned int attribute, void *value)) \
	X(hsa_amd_pointer_info,                                               \
	  (const void *pointer, struct pier_hsa_pointer_info *info,           \
	   void *(*allocate)(size_t), uint32_t *count, struct pier_hsa_agent **agents))

/*
 * Debian's 5.2 has none of them. hsa_amd_vmem_... came with version 1.4 of the
 * extensions, hsa_amd_portable_export_dmabuf_v2() with 1.9.
 */
#define PIER_HSA_OPTIONAL(X)                                                             \
	X(hsa_amd_portable_export_dmabuf,                                                \
	  (const void *pointer, size_t size, int *fd, uint64_t *offset))                 \
	X(hsa_amd_portable_export_dmabuf_v2,                                             \
	  (const void *pointer, size_t size, int *fd, uint64_t *offset, uint64_t flags)) \
	X(hsa_amd_portable_close_dmabuf, (int fd))                                       \
	X(hsa_amd_vmem_retain_alloc_handle,                                              \
	  (struct pier_hsa_vmem_handle * handle, void *address))                         \
	X(hsa_amd_vmem_export_shareable_handle,                                          \
	  (int *fd, struct pier_hsa_vmem_handle handle, uint64_t flags))                 \
	X(hsa_amd_vmem_handle_release, (struct pier_hsa_vmem_handle handle))

#define PIER_HIP_MEMBER(name, parameters) unsigned int(*name) parameters;

/* Constant once it is opened, and kept until the process ends. */
struct pier_hip {
	PIER_HIP_FUNCTIONS(PIER_HIP_MEMBER)
	PIER_HIP_OPTIONAL(PIER_HIP_MEMBER)
	PIER_HSA_FUNCTIONS(PIER_HIP_MEMBER)
	PIER_HSA_OPTIONAL(PIER_HIP_MEMBER)
	const char *(*hipGetErrorName)(unsigned int error);
	unsigned int generation; /* pier_fork_generation when it was opened */
	char path[256];		 /* of HIP's library */
	char kernel_reason[256]; /* of pier_hip_explain_kernel() */
	bool kernel_known;	 /* its configuration can be read */
};

#endif
