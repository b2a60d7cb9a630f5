/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <stdbool.h>
#include <stdio.h>

#include "backends/hip/api.h"

#ifdef HAVE_HIP_AND_HSA_H

#define __HIP_PLATFORM_AMD__
#include <hip/hip_runtime_api.h>
#include <hsa/hsa.h>
#include <hsa/hsa_ext_amd.h>

/*
 * The declarations of backends/hip/api.h, next to the vendor's headers; that this file
 * compiles is the check. Declarations newer than the headers cannot be checked.
 */

#define SAME(ours, theirs) static_assert((int)(ours) == (int)(theirs), #theirs)

SAME(PIER_HIP_SUCCESS, hipSuccess);
SAME(PIER_HIP_INVALID_VALUE, hipErrorInvalidValue);
SAME(PIER_HIP_OUT_OF_MEMORY, hipErrorOutOfMemory);
SAME(PIER_HIP_INVALID_DEVICE_POINTER, hipErrorInvalidDevicePointer);
SAME(PIER_HIP_NO_DEVICE, hipErrorNoDevice);
SAME(PIER_HIP_INVALID_HANDLE, hipErrorInvalidHandle);
SAME(PIER_HIP_NOT_FOUND, hipErrorNotFound);
SAME(PIER_HIP_NOT_READY, hipErrorNotReady);
SAME(PIER_HIP_CONTEXT_IS_DESTROYED, hipErrorContextIsDestroyed);
SAME(PIER_HIP_HOST_TO_DEVICE, hipMemcpyHostToDevice);
SAME(PIER_HIP_DEVICE_TO_HOST, hipMemcpyDeviceToHost);
SAME(PIER_HIP_FINE_GRAINED, hipDeviceMallocFinegrained);
SAME(PIER_HIP_REGISTER_PORTABLE, hipHostRegisterPortable);
SAME(PIER_HIP_STREAM_NON_BLOCKING, hipStreamNonBlocking);
SAME(PIER_HIP_EVENT_BLOCKING_SYNC, hipEventBlockingSync);
SAME(PIER_HIP_EVENT_DISABLE_TIMING, hipEventDisableTiming);
SAME(PIER_HIP_CAPTURE_RELAXED, hipStreamCaptureModeRelaxed);
SAME(PIER_HIP_BUFFER_ID, HIP_POINTER_ATTRIBUTE_BUFFER_ID);
SAME(PIER_HIP_IS_MANAGED, HIP_POINTER_ATTRIBUTE_IS_MANAGED);
SAME(PIER_HIP_DEVICE_ORDINAL, HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME(PIER_HIP_HDP_FLUSH, hipDeviceAttributeHdpMemFlushCntl);

SAME(PIER_HSA_SUCCESS, HSA_STATUS_SUCCESS);
SAME(PIER_HSA_ERROR, HSA_STATUS_ERROR);
SAME(PIER_HSA_INVALID_ARGUMENT, HSA_STATUS_ERROR_INVALID_ARGUMENT);
SAME(PIER_HSA_INVALID_ALLOCATION, HSA_STATUS_ERROR_INVALID_ALLOCATION);
SAME(PIER_HSA_INVALID_AGENT, HSA_STATUS_ERROR_INVALID_AGENT);
SAME(PIER_HSA_OUT_OF_RESOURCES, HSA_STATUS_ERROR_OUT_OF_RESOURCES);
SAME(PIER_HSA_NOT_INITIALIZED, HSA_STATUS_ERROR_NOT_INITIALIZED);
SAME(PIER_HSA_INCOMPATIBLE_ARGUMENTS, HSA_STATUS_ERROR_INCOMPATIBLE_ARGUMENTS);
SAME(PIER_HSA_POINTER_UNKNOWN, HSA_EXT_POINTER_TYPE_UNKNOWN);
SAME(PIER_HSA_POINTER_HSA, HSA_EXT_POINTER_TYPE_HSA);
SAME(PIER_HSA_POINTER_LOCKED, HSA_EXT_POINTER_TYPE_LOCKED);
SAME(PIER_HSA_POINTER_GRAPHICS, HSA_EXT_POINTER_TYPE_GRAPHICS);
SAME(PIER_HSA_POINTER_IPC, HSA_EXT_POINTER_TYPE_IPC);
SAME(PIER_HSA_AGENT_DEVICE, HSA_AGENT_INFO_DEVICE);
SAME(PIER_HSA_DEVICE_CPU, HSA_DEVICE_TYPE_CPU);
SAME(PIER_HSA_DEVICE_GPU, HSA_DEVICE_TYPE_GPU);
SAME(PIER_HSA_FINE_GRAINED, HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED);

#define SAME_PLACE(ours, our, theirs, their)                                   \
	static_assert(offsetof(struct ours, our) == offsetof(theirs, their) && \
			      sizeof(((struct ours *)0)->our) ==               \
				      sizeof(((theirs *)0)->their),            \
		      #their)

static_assert(sizeof(struct pier_hsa_agent) == sizeof(hsa_agent_t), "hsa_agent_t");
/* Versions from 1.13 on have more members after those known here. */
static_assert(sizeof(struct pier_hsa_pointer_info) <= sizeof(hsa_amd_pointer_info_t),
	      "hsa_amd_pointer_info_t");
#define INFO(our, their) \
	SAME_PLACE(pier_hsa_pointer_info, our, hsa_amd_pointer_info_t, their)
INFO(size, size);
INFO(type, type);
INFO(agent_base, agentBaseAddress);
INFO(host_base, hostBaseAddress);
INFO(length, sizeInBytes);
INFO(user_data, userData);
INFO(owner, agentOwner);
INFO(global_flags, global_flags);

/*
 * All except the functions that take HSA's structs, which have other names here: their
 * other parameters are compared above, or are pointers.
 */
static const struct pier_hip hip;

__attribute__((unused)) static void compare_hip(void)
{
#define SAME_FUNCTION(name)                                                              \
	static_assert(                                                                   \
		__builtin_types_compatible_p(__typeof__(&(name)), __typeof__(hip.name)), \
		#name)
	SAME_FUNCTION(hipRuntimeGetVersion);
	SAME_FUNCTION(hipGetDeviceCount);
	SAME_FUNCTION(hipGetDevice);
	SAME_FUNCTION(hipSetDevice);
	SAME_FUNCTION(hipGetLastError);
	SAME_FUNCTION(hipPeekAtLastError);
	SAME_FUNCTION(hipDeviceGetName);
	SAME_FUNCTION(hipDeviceGetPCIBusId);
	SAME_FUNCTION(hipDeviceTotalMem);
	SAME_FUNCTION(hipDeviceGetAttribute);
	SAME_FUNCTION(hipMemGetInfo);
	SAME_FUNCTION(hipMalloc);
	SAME_FUNCTION(hipFree);
	SAME_FUNCTION(hipHostMalloc);
	SAME_FUNCTION(hipHostFree);
	SAME_FUNCTION(hipHostRegister);
	SAME_FUNCTION(hipHostUnregister);
	SAME_FUNCTION(hipMemcpyAsync);
	SAME_FUNCTION(hipMemsetAsync);
	SAME_FUNCTION(hipStreamCreateWithFlags);
	SAME_FUNCTION(hipStreamDestroy);
	SAME_FUNCTION(hipStreamSynchronize);
	SAME_FUNCTION(hipMemGetAddressRange);
	SAME_FUNCTION(hipPointerGetAttribute);
	SAME_FUNCTION(hipExtMallocWithFlags);
	SAME_FUNCTION(hipThreadExchangeStreamCaptureMode);
	SAME_FUNCTION(hipGetErrorName);
	SAME_FUNCTION(hsa_init);
	SAME_FUNCTION(hsa_shut_down);
	SAME_FUNCTION(hsa_system_get_info);
}

int main(void)
{
	printf("the declarations are those of HIP %d.%d\n", HIP_VERSION_MAJOR,
	       HIP_VERSION_MINOR);
	return 0;
}

#else

int main(void)
{
	printf("skip: no headers of HIP and HSA to compare with (Debian: "
	       "libamdhip64-dev, libhsa-runtime-dev)\n");
	return 77; /* skipped */
}

#endif
