/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_CUDA_API_H
#define PIER_BACKENDS_CUDA_API_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The part of the CUDA driver API that the backend uses, declared here so that pier
 * builds without the toolkit. The names are the API's. If cuda.h is installed,
 * tests/unit/backends/cuda/api.c compares values, structs, prototypes and symbol names.
 */

/* Name, value. */
#define PIER_CU_VALUES(X)                                                   \
	X(CUDA_SUCCESS, 0)                                                  \
	X(CUDA_ERROR_INVALID_VALUE, 1)                                      \
	X(CUDA_ERROR_OUT_OF_MEMORY, 2)                                      \
	X(CUDA_ERROR_NOT_INITIALIZED, 3)                                    \
	X(CUDA_ERROR_DEINITIALIZED, 4)                                      \
	X(CUDA_ERROR_STUB_LIBRARY, 34)                                      \
	X(CUDA_ERROR_DEVICE_UNAVAILABLE, 46)                                \
	X(CUDA_ERROR_NO_DEVICE, 100)                                        \
	X(CUDA_ERROR_INVALID_DEVICE, 101)                                   \
	X(CUDA_ERROR_DEVICE_NOT_LICENSED, 102)                              \
	X(CUDA_ERROR_INVALID_CONTEXT, 201)                                  \
	X(CUDA_ERROR_MAP_FAILED, 205)                                       \
	X(CUDA_ERROR_ALREADY_MAPPED, 208)                                   \
	X(CUDA_ERROR_NOT_MAPPED, 211)                                       \
	X(CUDA_ERROR_ECC_UNCORRECTABLE, 214)                                \
	X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 217)                          \
	X(CUDA_ERROR_NVLINK_UNCORRECTABLE, 220)                             \
	X(CUDA_ERROR_OPERATING_SYSTEM, 304)                                 \
	X(CUDA_ERROR_INVALID_HANDLE, 400)                                   \
	X(CUDA_ERROR_ILLEGAL_STATE, 401)                                    \
	X(CUDA_ERROR_NOT_FOUND, 500)                                        \
	X(CUDA_ERROR_NOT_READY, 600)                                        \
	X(CUDA_ERROR_ILLEGAL_ADDRESS, 700)                                  \
	X(CUDA_ERROR_LAUNCH_TIMEOUT, 702)                                   \
	X(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709)                             \
	X(CUDA_ERROR_ASSERT, 710)                                           \
	X(CUDA_ERROR_TOO_MANY_PEERS, 711)                                   \
	X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712)                   \
	X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, 713)                       \
	X(CUDA_ERROR_HARDWARE_STACK_ERROR, 714)                             \
	X(CUDA_ERROR_ILLEGAL_INSTRUCTION, 715)                              \
	X(CUDA_ERROR_MISALIGNED_ADDRESS, 716)                               \
	X(CUDA_ERROR_INVALID_ADDRESS_SPACE, 717)                            \
	X(CUDA_ERROR_INVALID_PC, 718)                                       \
	X(CUDA_ERROR_LAUNCH_FAILED, 719)                                    \
	X(CUDA_ERROR_NOT_PERMITTED, 800)                                    \
	X(CUDA_ERROR_NOT_SUPPORTED, 801)                                    \
	X(CUDA_ERROR_SYSTEM_NOT_READY, 802)                                 \
	X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803)                           \
	X(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, 804)                   \
	X(CUDA_ERROR_MPS_CONNECTION_FAILED, 805)                            \
	X(CUDA_ERROR_MPS_RPC_FAILURE, 806)                                  \
	X(CUDA_ERROR_MPS_SERVER_NOT_READY, 807)                             \
	X(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, 808)                          \
	X(CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, 809)                      \
	X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900)                       \
	X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 906)                          \
	X(CUDA_ERROR_UNKNOWN, 999)                                          \
	X(CU_POINTER_ATTRIBUTE_CONTEXT, 1)                                  \
	X(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 2)                              \
	X(CU_POINTER_ATTRIBUTE_HOST_POINTER, 4)                             \
	X(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, 6)                              \
	X(CU_POINTER_ATTRIBUTE_BUFFER_ID, 7)                                \
	X(CU_POINTER_ATTRIBUTE_IS_MANAGED, 8)                               \
	X(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 9)                           \
	X(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, 11)                        \
	X(CU_POINTER_ATTRIBUTE_RANGE_SIZE, 12)                              \
	X(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, 15)              \
	X(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, 17)                          \
	X(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, 18)                            \
	X(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, 19)                       \
	X(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, 20)                         \
	X(CU_MEMORYTYPE_HOST, 1)                                            \
	X(CU_MEMORYTYPE_DEVICE, 2)                                          \
	X(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 110) \
	X(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 116)               \
	X(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, 117)    \
	X(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, 118)         \
	X(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 102)     \
	X(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 124)                       \
	X(CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED, 146)            \
	X(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST, 1)                   \
	X(CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE, 0)                       \
	X(CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER, 100)                    \
	X(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX, 0)            \
	X(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER, 100)                    \
	X(CU_CTX_SYNC_MEMOPS, 0x80)                                         \
	X(CU_STREAM_CAPTURE_MODE_RELAXED, 2)                                \
	X(CU_STREAM_NON_BLOCKING, 1)                                        \
	X(CU_EVENT_BLOCKING_SYNC, 1)                                        \
	X(CU_EVENT_DISABLE_TIMING, 2)                                       \
	X(CU_MEMHOSTALLOC_PORTABLE, 1)                                      \
	X(CU_MEMHOSTREGISTER_PORTABLE, 1)                                   \
	X(CU_MEM_ALLOCATION_TYPE_PINNED, 1)                                 \
	X(CU_MEM_LOCATION_TYPE_DEVICE, 1)                                   \
	X(CU_MEM_LOCATION_TYPE_HOST, 2)                                     \
	X(CU_MEM_LOCATION_TYPE_HOST_NUMA, 3)                                \
	X(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 4)                        \
	X(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 3)                            \
	X(CU_MEM_ALLOC_GRANULARITY_MINIMUM, 0)                              \
	X(CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 1)                           \
	X(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, 1)                            \
	X(CU_GET_PROC_ADDRESS_DEFAULT, 0)

/* The API's structs, field by field. */
struct pier_cu_location {
	unsigned int type;
	int id;
};

struct pier_cu_allocation_prop {
	unsigned int type;
	unsigned int requestedHandleTypes;
	struct pier_cu_location location;
	void *win32HandleMetaData;
	struct {
		unsigned char compressionType;
		unsigned char gpuDirectRDMACapable;
		unsigned short usage;
		unsigned char reserved[4];
	} allocFlags;
};

struct pier_cu_access_desc {
	struct pier_cu_location location;
	unsigned int flags;
};

struct pier_cu_ipc_handle {
	char reserved[64];
};

#ifndef CUDA_VERSION /* without cuda.h */

#define PIER_CU_VALUE(name, value) name = (value),
enum {
	PIER_CU_VALUES(PIER_CU_VALUE)
};
#undef PIER_CU_VALUE

/* The API's enums have no negative values, so they are unsigned ints. */
typedef unsigned int CUresult;
typedef unsigned int CUdevice_attribute;
typedef unsigned int CUpointer_attribute;
typedef unsigned int CUmemRangeHandleType;
typedef unsigned int CUmemAllocationGranularity_flags;
typedef unsigned int CUflushGPUDirectRDMAWritesTarget;
typedef unsigned int CUflushGPUDirectRDMAWritesScope;
typedef unsigned int CUdriverProcAddressQueryResult;
typedef unsigned int CUstreamCaptureMode;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef uint64_t cuuint64_t;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct pier_cu_location CUmemLocation;
typedef struct pier_cu_allocation_prop CUmemAllocationProp;
typedef struct pier_cu_access_desc CUmemAccessDesc;
typedef struct pier_cu_ipc_handle CUipcMemHandle;

#endif

/*
 * The calls: name; the version of CUDA that introduced the form used here, which
 * cuGetProcAddress() takes; the symbol of that form; parameters. Calls that are newer
 * than PIER_CU_OLDEST may be missing.
 */
#define PIER_CU_CALLS(X)                                                                 \
	X(cuInit, 2000, "cuInit", (unsigned int flags))                                  \
	X(cuDriverGetVersion, 2020, "cuDriverGetVersion", (int *ret_version))            \
	X(cuGetErrorName, 6000, "cuGetErrorName",                                        \
	  (CUresult error, const char **ret_name))                                       \
	X(cuGetErrorString, 6000, "cuGetErrorString",                                    \
	  (CUresult error, const char **ret_text))                                       \
	X(cuDeviceGet, 2000, "cuDeviceGet", (CUdevice * ret_device, int ordinal))        \
	X(cuDeviceGetCount, 2000, "cuDeviceGetCount", (int *ret_count))                  \
	X(cuDeviceGetName, 2000, "cuDeviceGetName",                                      \
	  (char *ret_name, int size, CUdevice device))                                   \
	X(cuDeviceGetAttribute, 2000, "cuDeviceGetAttribute",                            \
	  (int *ret_value, CUdevice_attribute attribute, CUdevice device))               \
	X(cuDeviceGetPCIBusId, 4010, "cuDeviceGetPCIBusId",                              \
	  (char *ret_address, int size, CUdevice device))                                \
	X(cuDevicePrimaryCtxRetain, 7000, "cuDevicePrimaryCtxRetain",                    \
	  (CUcontext * ret_context, CUdevice device))                                    \
	X(cuDevicePrimaryCtxRelease, 7000, "cuDevicePrimaryCtxRelease",                  \
	  (CUdevice device))                                                             \
	X(cuDevicePrimaryCtxGetState, 7000, "cuDevicePrimaryCtxGetState",                \
	  (CUdevice device, unsigned int *ret_flags, int *ret_active))                   \
	X(cuCtxPushCurrent, 4000, "cuCtxPushCurrent_v2", (CUcontext context))            \
	X(cuCtxPopCurrent, 4000, "cuCtxPopCurrent_v2", (CUcontext * ret_context))        \
	X(cuCtxGetFlags, 7000, "cuCtxGetFlags", (unsigned int *ret_flags))               \
	X(cuCtxSetFlags, 12010, "cuCtxSetFlags", (unsigned int flags))                   \
	X(cuCtxGetId, 12000, "cuCtxGetId",                                               \
	  (CUcontext context, unsigned long long *ret_id))                               \
	X(cuThreadExchangeStreamCaptureMode, 10010, "cuThreadExchangeStreamCaptureMode", \
	  (CUstreamCaptureMode * mode))                                                  \
	X(cuStreamCreate, 2000, "cuStreamCreate",                                        \
	  (CUstream * ret_stream, unsigned int flags))                                   \
	X(cuStreamDestroy, 4000, "cuStreamDestroy_v2", (CUstream stream))                \
	X(cuStreamSynchronize, 2000, "cuStreamSynchronize", (CUstream stream))           \
	X(cuEventCreate, 2000, "cuEventCreate",                                          \
	  (CUevent * ret_event, unsigned int flags))                                     \
	X(cuEventDestroy, 4000, "cuEventDestroy_v2", (CUevent event))                    \
	X(cuEventRecord, 2000, "cuEventRecord", (CUevent event, CUstream stream))        \
	X(cuEventQuery, 2000, "cuEventQuery", (CUevent event))                           \
	X(cuEventSynchronize, 2000, "cuEventSynchronize", (CUevent event))               \
	X(cuMemAlloc, 3020, "cuMemAlloc_v2", (CUdeviceptr * ret_address, size_t length)) \
	X(cuMemAllocAsync, 11020, "cuMemAllocAsync",                                     \
	  (CUdeviceptr * ret_address, size_t length, CUstream stream))                   \
	X(cuMemFree, 3020, "cuMemFree_v2", (CUdeviceptr address))                        \
	X(cuMemsetD8Async, 3020, "cuMemsetD8Async",                                      \
	  (CUdeviceptr address, unsigned char value, size_t length, CUstream stream))    \
	X(cuMemcpyHtoDAsync, 3020, "cuMemcpyHtoDAsync_v2",                               \
	  (CUdeviceptr destination, const void *source, size_t length, CUstream stream)) \
	X(cuMemcpyDtoHAsync, 3020, "cuMemcpyDtoHAsync_v2",                               \
	  (void *destination, CUdeviceptr source, size_t length, CUstream stream))       \
	X(cuMemcpyDtoDAsync, 3020, "cuMemcpyDtoDAsync_v2",                               \
	  (CUdeviceptr destination, CUdeviceptr source, size_t length, CUstream stream)) \
	X(cuIpcGetMemHandle, 4010, "cuIpcGetMemHandle",                                  \
	  (CUipcMemHandle * ret_handle, CUdeviceptr address))                            \
	X(cuIpcOpenMemHandle, 11000, "cuIpcOpenMemHandle_v2",                            \
	  (CUdeviceptr * ret_address, CUipcMemHandle handle, unsigned int flags))        \
	X(cuIpcCloseMemHandle, 4010, "cuIpcCloseMemHandle", (CUdeviceptr address))       \
	X(cuMemHostAlloc, 2020, "cuMemHostAlloc",                                        \
	  (void **ret_pointer, size_t length, unsigned int flags))                       \
	X(cuMemFreeHost, 2000, "cuMemFreeHost", (void *pointer))                         \
	X(cuMemHostRegister, 6050, "cuMemHostRegister_v2",                               \
	  (void *pointer, size_t length, unsigned int flags))                            \
	X(cuMemHostUnregister, 4000, "cuMemHostUnregister", (void *pointer))             \
	X(cuMemGetAddressRange, 3020, "cuMemGetAddressRange_v2",                         \
	  (CUdeviceptr * ret_start, size_t * ret_length, CUdeviceptr address))           \
	X(cuPointerGetAttribute, 4000, "cuPointerGetAttribute",                          \
	  (void *ret_value, CUpointer_attribute attribute, CUdeviceptr address))         \
	X(cuPointerGetAttributes, 7000, "cuPointerGetAttributes",                        \
	  (unsigned int count, CUpointer_attribute *attributes, void **ret_values,       \
	   CUdeviceptr address))                                                         \
	X(cuPointerSetAttribute, 6000, "cuPointerSetAttribute",                          \
	  (const void *value, CUpointer_attribute attribute, CUdeviceptr address))       \
	X(cuMemAddressReserve, 10020, "cuMemAddressReserve",                             \
	  (CUdeviceptr * ret_address, size_t length, size_t alignment, CUdeviceptr hint, \
	   unsigned long long flags))                                                    \
	X(cuMemAddressFree, 10020, "cuMemAddressFree",                                   \
	  (CUdeviceptr address, size_t length))                                          \
	X(cuMemCreate, 10020, "cuMemCreate",                                             \
	  (CUmemGenericAllocationHandle * ret_handle, size_t length,                     \
	   const CUmemAllocationProp *prop, unsigned long long flags))                   \
	X(cuMemRelease, 10020, "cuMemRelease", (CUmemGenericAllocationHandle handle))    \
	X(cuMemMap, 10020, "cuMemMap",                                                   \
	  (CUdeviceptr address, size_t length, size_t offset,                            \
	   CUmemGenericAllocationHandle handle, unsigned long long flags))               \
	X(cuMemUnmap, 10020, "cuMemUnmap", (CUdeviceptr address, size_t length))         \
	X(cuMemSetAccess, 10020, "cuMemSetAccess",                                       \
	  (CUdeviceptr address, size_t length, const CUmemAccessDesc *access,            \
	   size_t count))                                                                \
	X(cuMemGetAccess, 10020, "cuMemGetAccess",                                       \
	  (unsigned long long *ret_flags, const CUmemLocation *location,                 \
	   CUdeviceptr address))                                                         \
	X(cuMemGetAllocationGranularity, 10020, "cuMemGetAllocationGranularity",         \
	  (size_t * ret_granularity, const CUmemAllocationProp *prop,                    \
	   CUmemAllocationGranularity_flags option))                                     \
	X(cuMemGetAllocationPropertiesFromHandle, 10020,                                 \
	  "cuMemGetAllocationPropertiesFromHandle",                                      \
	  (CUmemAllocationProp * ret_prop, CUmemGenericAllocationHandle handle))         \
	X(cuMemRetainAllocationHandle, 11000, "cuMemRetainAllocationHandle",             \
	  (CUmemGenericAllocationHandle * ret_handle, void *address))                    \
	X(cuFlushGPUDirectRDMAWrites, 11030, "cuFlushGPUDirectRDMAWrites",               \
	  (CUflushGPUDirectRDMAWritesTarget target,                                      \
	   CUflushGPUDirectRDMAWritesScope scope))                                       \
	X(cuMemGetHandleForAddressRange, 11070, "cuMemGetHandleForAddressRange",         \
	  (void *ret_handle, CUdeviceptr address, size_t length,                         \
	   CUmemRangeHandleType type, unsigned long long flags))

enum {
	PIER_CU_OLDEST = 7000,
	/* cuMemGetHandleForAddressRange() takes
	 * CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE. */
	PIER_CU_PCIE_SINCE = 12080,
	PIER_CU_PCIE_FLAG = 1,
	/* CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES. */
	PIER_CU_USES_HOST_PAGE_TABLES = 100,
	/* CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED came. */
	PIER_CU_HOST_DMA_BUF_SINCE = 13000,
};

#define PIER_CU_CALL(name, since, symbol, parameters) CUresult(*name) parameters;
struct pier_cu_calls {
	PIER_CU_CALLS(PIER_CU_CALL)
};
#undef PIER_CU_CALL

/* The calls that find the others: from CUDA 12.0 on, and from 11.3 on. */
typedef CUresult (*pier_cu_get_proc_address)(const char *symbol, void **ret_function,
					     int version, cuuint64_t flags,
					     CUdriverProcAddressQueryResult *ret_status);
typedef CUresult (*pier_cu_get_proc_address_v1)(const char *symbol, void **ret_function,
						int version, cuuint64_t flags);

enum {
	/* More than any machine has; the backend ignores further devices. */
	PIER_CUDA_DEVICES = 256,
};

/* libcuda.so.1, opened. One in a process, kept for its life. */
struct pier_cuda {
	struct pier_cu_calls call;
	void *library;
	int version;		 /* of the driver: 12080 is CUDA 12.8 */
	atomic_int device_count; /* -1: pier has not called cuInit() yet */
	/* The primary context of each device, retained at its first use, or NULL. */
	_Atomic(CUcontext) primary[PIER_CUDA_DEVICES];
	/* Its cuCtxGetId(), which differs after cudaDeviceReset(); 0: unknown. */
	atomic_ullong primary_id[PIER_CUDA_DEVICES];
	/* One stream in each primary context, created at its first use, or NULL. */
	_Atomic(CUstream) stream[PIER_CUDA_DEVICES];
};

#endif
