/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda_driver.h"

/* The second of two threads that retain a context at once gives its own back. */
static int retain_primary(struct pier_cuda *cuda, int device, CUcontext *ret_context)
{
	CUcontext context = NULL, first = NULL;
	CUresult error = cuda->call.cuDevicePrimaryCtxRetain(&context, device);

	if (error != CUDA_SUCCESS)
		return pier_cuda_fail(cuda, error,
				      "cuDevicePrimaryCtxRetain of CUDA device %d",
				      device);
	if (!atomic_compare_exchange_strong(&cuda->primary[device], &first, context)) {
		cuda->call.cuDevicePrimaryCtxRelease(device);
		context = first;
	}
	*ret_context = context;
	return 0;
}

int pier_cuda_enter(struct pier_cuda *cuda, int device, CUcontext context)
{
	CUresult error;
	int result = 0;

	if (!context)
		context = atomic_load(&cuda->primary[device]);
	if (!context)
		result = retain_primary(cuda, device, &context);
	if (result != 0)
		return result;
	error = cuda->call.cuCtxPushCurrent(context);
	if (error != CUDA_SUCCESS)
		return pier_cuda_fail(cuda, error,
				      "cuCtxPushCurrent of a context of CUDA device %d",
				      device);
	return 0;
}

void pier_cuda_leave(struct pier_cuda *cuda)
{
	CUcontext context;

	cuda->call.cuCtxPopCurrent(&context);
}
