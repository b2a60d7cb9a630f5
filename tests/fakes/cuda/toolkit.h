/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_FAKES_CUDA_TOOLKIT_H
#define TESTS_FAKES_CUDA_TOOLKIT_H

/*
 * In place of the header of the CUDA toolkit, for programs of others that are built with
 * CUDA and linked with the fake driver.
 */

#include "abi.h"

#define FAKE_CUDA_PROTOTYPE(symbol, name, since, parameters) CUresult symbol parameters;
FAKE_CUDA_ENTRIES(FAKE_CUDA_PROTOTYPE)

/* The forms that the header of CUDA 12 has under these names. */
#define cuCtxCreate    cuCtxCreate_v2
#define cuCtxDestroy   cuCtxDestroy_v2
#define cuMemAlloc     cuMemAlloc_v2
#define cuMemAllocHost cuMemAllocHost_v2
#define cuMemFree      cuMemFree_v2
#define cuMemcpyDtoD   cuMemcpyDtoD_v2

#endif
