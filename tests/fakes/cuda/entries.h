/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_FAKES_CUDA_ENTRIES_H
#define TESTS_FAKES_CUDA_ENTRIES_H

/*
 * ENTRY(symbol, name, since, parameters): the exported symbol, its name for
 * cuGetProcAddress(), and the version of CUDA that introduced this form (part of the type
 * names in cudaTypedefs.h). Forms from before CUDA 4, whose addresses have 32 bits, are
 * omitted.
 */
#define FAKE_CUDA_ENTRIES(ENTRY)                                                         \
	ENTRY(cuInit, cuInit, 2000, (unsigned int flags))                                \
	ENTRY(cuDriverGetVersion, cuDriverGetVersion, 2020, (int *ret_version))          \
	ENTRY(cuGetErrorName, cuGetErrorName, 6000, (CUresult error, const char **ret))  \
	ENTRY(cuGetErrorString, cuGetErrorString, 6000,                                  \
	      (CUresult error, const char **ret))                                        \
	ENTRY(cuGetProcAddress, cuGetProcAddress, 11030,                                 \
	      (const char *name, void **ret, int version, cuuint64_t flags))             \
	ENTRY(cuGetProcAddress_v2, cuGetProcAddress, 12000,                              \
	      (const char *name, void **ret, int version, cuuint64_t flags,              \
	       CUdriverProcAddressQueryResult *ret_status))                              \
	ENTRY(cuDeviceGetCount, cuDeviceGetCount, 2000, (int *ret_count))                \
	ENTRY(cuDeviceGet, cuDeviceGet, 2000, (CUdevice * ret_device, int ordinal))      \
	ENTRY(cuDeviceGetName, cuDeviceGetName, 2000,                                    \
	      (char *ret_name, int size, CUdevice device))                               \
	ENTRY(cuDeviceGetAttribute, cuDeviceGetAttribute, 2000,                          \
	      (int *ret_value, CUdevice_attribute attribute, CUdevice device))           \
	ENTRY(cuDeviceGetPCIBusId, cuDeviceGetPCIBusId, 4010,                            \
	      (char *ret_address, int size, CUdevice device))                            \
	ENTRY(cuDeviceGetByPCIBusId, cuDeviceGetByPCIBusId, 4010,                        \
	      (CUdevice * ret_device, const char *address))                              \
	ENTRY(cuDeviceTotalMem_v2, cuDeviceTotalMem, 3020,                               \
	      (size_t * ret_bytes, CUdevice device))                                     \
	ENTRY(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000,                  \
	      (CUcontext * ret_context, CUdevice device))                                \
	ENTRY(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, 7000,                \
	      (CUdevice device))                                                         \
	ENTRY(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease, 11000,            \
	      (CUdevice device))                                                         \
	ENTRY(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000,              \
	      (CUdevice device, unsigned int *ret_flags, int *ret_active))               \
	ENTRY(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset, 7000, (CUdevice device)) \
	ENTRY(cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset, 11000,                \
	      (CUdevice device))                                                         \
	ENTRY(cuCtxCreate_v2, cuCtxCreate, 3020,                                         \
	      (CUcontext * ret_context, unsigned int flags, CUdevice device))            \
	ENTRY(cuCtxCreate_v4, cuCtxCreate, 12050,                                        \
	      (CUcontext * ret_context, CUctxCreateParams * parameters,                  \
	       unsigned int flags, CUdevice device))                                     \
	ENTRY(cuCtxDestroy_v2, cuCtxDestroy, 4000, (CUcontext context))                  \
	ENTRY(cuCtxPushCurrent_v2, cuCtxPushCurrent, 4000, (CUcontext context))          \
	ENTRY(cuCtxPopCurrent_v2, cuCtxPopCurrent, 4000, (CUcontext * ret_context))      \
	ENTRY(cuCtxGetCurrent, cuCtxGetCurrent, 4000, (CUcontext * ret_context))         \
	ENTRY(cuCtxSetCurrent, cuCtxSetCurrent, 4000, (CUcontext context))               \
	ENTRY(cuCtxGetDevice, cuCtxGetDevice, 2000, (CUdevice * ret_device))             \
	ENTRY(cuCtxGetDevice_v2, cuCtxGetDevice, 13000,                                  \
	      (CUdevice * ret_device, CUcontext context))                                \
	ENTRY(cuCtxSynchronize, cuCtxSynchronize, 2000, (void))                          \
	ENTRY(cuCtxSynchronize_v2, cuCtxSynchronize, 13000, (CUcontext context))         \
	ENTRY(cuCtxGetFlags, cuCtxGetFlags, 7000, (unsigned int *ret_flags))             \
	ENTRY(cuCtxSetFlags, cuCtxSetFlags, 12010, (unsigned int flags))                 \
	ENTRY(cuCtxGetId, cuCtxGetId, 12000,                                             \
	      (CUcontext context, unsigned long long *ret_id))                           \
	ENTRY(cuMemGetInfo_v2, cuMemGetInfo, 3020,                                       \
	      (size_t * ret_free, size_t * ret_all))                                     \
	ENTRY(cuMemAlloc_v2, cuMemAlloc, 3020, (CUdeviceptr * ret_address, size_t size)) \
	ENTRY(cuMemFree_v2, cuMemFree, 3020, (CUdeviceptr address))                      \
	ENTRY(cuMemHostAlloc, cuMemHostAlloc, 2020,                                      \
	      (void **ret_memory, size_t size, unsigned int flags))                      \
	ENTRY(cuMemAllocHost_v2, cuMemAllocHost, 3020, (void **ret_memory, size_t size)) \
	ENTRY(cuMemFreeHost, cuMemFreeHost, 2000, (void *memory))                        \
	ENTRY(cuMemHostRegister_v2, cuMemHostRegister, 6050,                             \
	      (void *memory, size_t size, unsigned int flags))                           \
	ENTRY(cuMemHostUnregister, cuMemHostUnregister, 4000, (void *memory))            \
	ENTRY(cuMemHostGetDevicePointer_v2, cuMemHostGetDevicePointer, 3020,             \
	      (CUdeviceptr * ret_address, void *memory, unsigned int flags))             \
	ENTRY(cuMemAllocManaged, cuMemAllocManaged, 6000,                                \
	      (CUdeviceptr * ret_address, size_t size, unsigned int flags))              \
	ENTRY(cuMemAllocAsync, cuMemAllocAsync, 11020,                                   \
	      (CUdeviceptr * ret_address, size_t size, CUstream stream))                 \
	ENTRY(cuMemFreeAsync, cuMemFreeAsync, 11020,                                     \
	      (CUdeviceptr address, CUstream stream))                                    \
	ENTRY(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, 10020,       \
	      (size_t * ret_granularity, const CUmemAllocationProp *properties,          \
	       CUmemAllocationGranularity_flags option))                                 \
	ENTRY(cuMemAddressReserve, cuMemAddressReserve, 10020,                           \
	      (CUdeviceptr * ret_address, size_t size, size_t alignment,                 \
	       CUdeviceptr hint, unsigned long long flags))                              \
	ENTRY(cuMemAddressFree, cuMemAddressFree, 10020,                                 \
	      (CUdeviceptr address, size_t size))                                        \
	ENTRY(cuMemCreate, cuMemCreate, 10020,                                           \
	      (CUmemGenericAllocationHandle * ret_handle, size_t size,                   \
	       const CUmemAllocationProp *properties, unsigned long long flags))         \
	ENTRY(cuMemRelease, cuMemRelease, 10020, (CUmemGenericAllocationHandle handle))  \
	ENTRY(cuMemMap, cuMemMap, 10020,                                                 \
	      (CUdeviceptr address, size_t size, size_t offset,                          \
	       CUmemGenericAllocationHandle handle, unsigned long long flags))           \
	ENTRY(cuMemUnmap, cuMemUnmap, 10020, (CUdeviceptr address, size_t size))         \
	ENTRY(cuMemSetAccess, cuMemSetAccess, 10020,                                     \
	      (CUdeviceptr address, size_t size, const CUmemAccessDesc *wanted,          \
	       size_t count))                                                            \
	ENTRY(cuMemGetAccess, cuMemGetAccess, 10020,                                     \
	      (unsigned long long *ret_flags, const CUmemLocation *location,             \
	       CUdeviceptr address))                                                     \
	ENTRY(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000,           \
	      (CUmemGenericAllocationHandle * ret_handle, void *address))                \
	ENTRY(cuMemGetAllocationPropertiesFromHandle,                                    \
	      cuMemGetAllocationPropertiesFromHandle, 10020,                             \
	      (CUmemAllocationProp * ret_properties,                                     \
	       CUmemGenericAllocationHandle handle))                                     \
	ENTRY(cuPointerGetAttribute, cuPointerGetAttribute, 4000,                        \
	      (void *ret_value, CUpointer_attribute attribute, CUdeviceptr address))     \
	ENTRY(cuPointerGetAttributes, cuPointerGetAttributes, 7000,                      \
	      (unsigned int count, CUpointer_attribute *attributes, void **ret_values,   \
	       CUdeviceptr address))                                                     \
	ENTRY(cuPointerSetAttribute, cuPointerSetAttribute, 6000,                        \
	      (const void *value, CUpointer_attribute attribute, CUdeviceptr address))   \
	ENTRY(cuMemGetAddressRange_v2, cuMemGetAddressRange, 3020,                       \
	      (CUdeviceptr * ret_base, size_t * ret_size, CUdeviceptr address))          \
	ENTRY(cuMemGetHandleForAddressRange, cuMemGetHandleForAddressRange, 11070,       \
	      (void *ret_handle, CUdeviceptr address, size_t size,                       \
	       CUmemRangeHandleType type, unsigned long long flags))                     \
	ENTRY(cuFlushGPUDirectRDMAWrites, cuFlushGPUDirectRDMAWrites, 11030,             \
	      (CUflushGPUDirectRDMAWritesTarget target,                                  \
	       CUflushGPUDirectRDMAWritesScope scope))                                   \
	ENTRY(cuIpcGetMemHandle, cuIpcGetMemHandle, 4010,                                \
	      (CUipcMemHandle * ret_handle, CUdeviceptr address))                        \
	ENTRY(cuIpcOpenMemHandle_v2, cuIpcOpenMemHandle, 11000,                          \
	      (CUdeviceptr * ret_address, CUipcMemHandle handle, unsigned int flags))    \
	ENTRY(cuIpcCloseMemHandle, cuIpcCloseMemHandle, 4010, (CUdeviceptr address))     \
	ENTRY(cuMemcpy, cuMemcpy, 4000, (CUdeviceptr to, CUdeviceptr from, size_t size)) \
	ENTRY(cuMemcpyHtoD_v2, cuMemcpyHtoD, 3020,                                       \
	      (CUdeviceptr to, const void *from, size_t size))                           \
	ENTRY(cuMemcpyDtoH_v2, cuMemcpyDtoH, 3020,                                       \
	      (void *to, CUdeviceptr from, size_t size))                                 \
	ENTRY(cuMemcpyDtoD_v2, cuMemcpyDtoD, 3020,                                       \
	      (CUdeviceptr to, CUdeviceptr from, size_t size))                           \
	ENTRY(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync, 3020,                             \
	      (CUdeviceptr to, const void *from, size_t size, CUstream stream))          \
	ENTRY(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync, 3020,                             \
	      (void *to, CUdeviceptr from, size_t size, CUstream stream))                \
	ENTRY(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync, 3020,                             \
	      (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream))          \
	ENTRY(cuMemsetD8_v2, cuMemsetD8, 3020,                                           \
	      (CUdeviceptr to, unsigned char byte, size_t size))                         \
	ENTRY(cuMemsetD8Async, cuMemsetD8Async, 3020,                                    \
	      (CUdeviceptr to, unsigned char byte, size_t size, CUstream stream))        \
	ENTRY(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode,      \
	      10010, (CUstreamCaptureMode * mode))                                       \
	ENTRY(cuStreamCreate, cuStreamCreate, 2000,                                      \
	      (CUstream * ret_stream, unsigned int flags))                               \
	ENTRY(cuStreamDestroy_v2, cuStreamDestroy, 4000, (CUstream stream))              \
	ENTRY(cuStreamSynchronize, cuStreamSynchronize, 2000, (CUstream stream))         \
	ENTRY(cuStreamQuery, cuStreamQuery, 2000, (CUstream stream))                     \
	ENTRY(cuEventCreate, cuEventCreate, 2000,                                        \
	      (CUevent * ret_event, unsigned int flags))                                 \
	ENTRY(cuEventDestroy_v2, cuEventDestroy, 4000, (CUevent event))                  \
	ENTRY(cuEventRecord, cuEventRecord, 2000, (CUevent event, CUstream stream))      \
	ENTRY(cuEventQuery, cuEventQuery, 2000, (CUevent event))                         \
	ENTRY(cuEventSynchronize, cuEventSynchronize, 2000, (CUevent event))

/* The functions behind the symbols. */
#define FAKE_CUDA_DECLARE(symbol, name, since, parameters) \
	CUresult fake_##symbol parameters;
FAKE_CUDA_ENTRIES(FAKE_CUDA_DECLARE)

#endif
