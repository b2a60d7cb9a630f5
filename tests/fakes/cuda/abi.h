/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_FAKES_CUDA_ABI_H
#define TESTS_FAKES_CUDA_ABI_H

/*
 * The part of the CUDA driver's ABI that the fake implements, under its own names,
 * because few machines have cuda.h. If there is one, abi_check.c compares them.
 */

#include <stddef.h>
#include <stdint.h>

enum fake_cuda_value {
#define VALUE(name, value) name = value,
#include "values.h"
#undef VALUE
};

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef uint64_t cuuint64_t;

/* Enumerations in cuda.h; their values are above. */
typedef unsigned int CUdevice_attribute;
typedef unsigned int CUpointer_attribute;
typedef unsigned int CUmemAllocationGranularity_flags;
typedef unsigned int CUmemRangeHandleType;
typedef unsigned int CUflushGPUDirectRDMAWritesTarget;
typedef unsigned int CUflushGPUDirectRDMAWritesScope;
typedef unsigned int CUdriverProcAddressQueryResult;
typedef unsigned int CUstreamCaptureMode;

typedef struct CUmemLocation_st {
	unsigned int type;
	int id;
} CUmemLocation;

typedef struct CUmemAllocationProp_st {
	unsigned int type;
	unsigned int requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	struct {
		unsigned char compressionType;
		unsigned char gpuDirectRDMACapable;
		unsigned short usage;
		unsigned char reserved[4];
	} allocFlags;
} CUmemAllocationProp;

typedef struct CUmemAccessDesc_st {
	CUmemLocation location;
	unsigned int flags;
} CUmemAccessDesc;

typedef struct CUipcMemHandle_st {
	char reserved[64];
} CUipcMemHandle;

/* The fake only checks whether it is NULL. */
typedef struct CUctxCreateParams_st CUctxCreateParams;

#include "entries.h"

#endif
