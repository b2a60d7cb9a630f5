/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Sizes of the types that pass through the driver's functions, and the places of their
 * members, on 64-bit machines. Compared with abi.h and, where there is one, with cuda.h.
 */

SIZE(CUresult, 4)
SIZE(CUdevice, 4)
SIZE(CUdeviceptr, 8)
SIZE(CUcontext, 8)
SIZE(CUstream, 8)
SIZE(CUevent, 8)
SIZE(CUmemGenericAllocationHandle, 8)
SIZE(cuuint64_t, 8)
SIZE(CUdevice_attribute, 4)
SIZE(CUpointer_attribute, 4)
SIZE(CUmemAllocationGranularity_flags, 4)
SIZE(CUmemRangeHandleType, 4)
SIZE(CUflushGPUDirectRDMAWritesTarget, 4)
SIZE(CUflushGPUDirectRDMAWritesScope, 4)
SIZE(CUdriverProcAddressQueryResult, 4)
SIZE(CUstreamCaptureMode, 4)

SIZE(CUmemLocation, 8)
MEMBER(CUmemLocation, type, 0)
MEMBER(CUmemLocation, id, 4)

SIZE(CUmemAllocationProp, 32)
MEMBER(CUmemAllocationProp, type, 0)
MEMBER(CUmemAllocationProp, requestedHandleTypes, 4)
MEMBER(CUmemAllocationProp, location, 8)
MEMBER(CUmemAllocationProp, win32HandleMetaData, 16)
MEMBER(CUmemAllocationProp, allocFlags.compressionType, 24)
MEMBER(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable, 25)
MEMBER(CUmemAllocationProp, allocFlags.usage, 26)
MEMBER(CUmemAllocationProp, allocFlags.reserved, 28)

SIZE(CUipcMemHandle, 64)

SIZE(CUmemAccessDesc, 12)
MEMBER(CUmemAccessDesc, location, 0)
MEMBER(CUmemAccessDesc, flags, 8)
