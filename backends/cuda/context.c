/* SPDX-License-Identifier: BSD-3-Clause */
#include "context.h"
#include "error.h"

/*
 * While a thread captures a stream into a graph in the global mode (the default), calls
 * of other threads that may allocate or wait fail and break the capture. Pier's calls
 * belong to no graph, so they relax the mode. Before CUDA 10.1 there was no other mode.
 */
static void relax_capture(const struct pier_cuda *cuda, struct pier_cuda_scope *ret_scope)
{
	ret_scope->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	ret_scope->relaxed = cuda->call.cuThreadExchangeStreamCaptureMode &&
			     cuda->call.cuThreadExchangeStreamCaptureMode(
				     &ret_scope->mode) == CUDA_SUCCESS;
}

static void restore_capture(const struct pier_cuda *cuda,
			    const struct pier_cuda_scope *scope)
{
	CUstreamCaptureMode mode = scope->mode;

	if (scope->relaxed)
		cuda->call.cuThreadExchangeStreamCaptureMode(&mode);
}

/*
 * In the current context. Don't set the flag twice: setting it takes a lock. The flags
 * that a context reports may include one that cuCtxSetFlags() does not take, such as the
 * deprecated CU_CTX_MAP_HOST. The bare flag always works, and is all that UCX passes
 * (uct_cuda_copy_set_ctx_sync_memops() in cuda_copy_md.c), but it resets the scheduling.
 */
static CUresult set_sync_flag(const struct pier_cuda *cuda)
{
	unsigned int flags = 0;
	CUresult error;

	if (!cuda->call.cuCtxSetFlags ||
	    cuda->call.cuCtxGetFlags(&flags) != CUDA_SUCCESS ||
	    flags & CU_CTX_SYNC_MEMOPS)
		return CUDA_SUCCESS;
	error = cuda->call.cuCtxSetFlags(flags | CU_CTX_SYNC_MEMOPS);
	if (error == CUDA_ERROR_INVALID_VALUE && flags)
		error = cuda->call.cuCtxSetFlags(CU_CTX_SYNC_MEMOPS);
	return error;
}

CUresult pier_cuda_synchronize_context(const struct pier_cuda *cuda)
{
	struct pier_cuda_scope scope;
	CUresult error;

	relax_capture(cuda, &scope);
	error = set_sync_flag(cuda);
	restore_capture(cuda, &scope);
	return error;
}

/* Before pier uses the context. A failure here shows up again at the first export. */
static void prepare_context(const struct pier_cuda *cuda, CUcontext context)
{
	if (cuda->call.cuCtxPushCurrent(context) != CUDA_SUCCESS)
		return;
	pier_cuda_synchronize_context(cuda);
	cuda->call.cuCtxPopCurrent(&context);
}

/* 0 before CUDA 12.0. */
static unsigned long long read_id(const struct pier_cuda *cuda, CUcontext context)
{
	unsigned long long id = 0;

	if (!cuda->call.cuCtxGetId || cuda->call.cuCtxGetId(context, &id) != CUDA_SUCCESS)
		return 0;
	return id;
}

/* If two threads retain the context at once, the second releases its own reference. */
static int retain_primary(struct pier_cuda *cuda, int device, CUcontext *ret_context)
{
	CUcontext context = NULL, first = NULL;
	CUresult error = cuda->call.cuDevicePrimaryCtxRetain(&context, device);

	if (error != CUDA_SUCCESS)
		return pier_cuda_fail(cuda, error,
				      "cuDevicePrimaryCtxRetain of CUDA device %d",
				      device);
	prepare_context(cuda, context);
	if (!atomic_compare_exchange_strong(&cuda->primary[device], &first, context)) {
		cuda->call.cuDevicePrimaryCtxRelease(device);
		context = first;
	} else {
		atomic_store(&cuda->primary_id[device], read_id(cuda, context));
	}
	*ret_context = context;
	return 0;
}

/*
 * cudaDeviceReset() destroys the primary context, with its streams, for all users in the
 * process. The next user makes a new one, often at the same address; only its number
 * differs. A reset does not release the references of other users
 * (cuDevicePrimaryCtxReset() in CUDA's driver API).
 */
static bool was_reset(const struct pier_cuda *cuda, int device, CUcontext context)
{
	unsigned long long known = atomic_load(&cuda->primary_id[device]);
	unsigned int flags;
	int active = 1;

	if (cuda->call.cuDevicePrimaryCtxGetState(device, &flags, &active) ==
		    CUDA_SUCCESS &&
	    !active)
		return true;
	return known && read_id(cuda, context) != known;
}

/*
 * The primary context if pier has retained it and it still exists. Otherwise NULL, and
 * pier forgets it and its stream. Of several threads that notice the reset, one drops the
 * reference.
 */
static CUcontext find_primary(struct pier_cuda *cuda, int device)
{
	CUcontext context = atomic_load(&cuda->primary[device]), lost = context;

	if (!context || !was_reset(cuda, device, context))
		return context;
	if (atomic_compare_exchange_strong(&cuda->primary[device], &lost, NULL)) {
		atomic_store(&cuda->primary_id[device], 0);
		atomic_store(&cuda->stream[device], NULL);
		cuda->call.cuDevicePrimaryCtxRelease(device);
	}
	return NULL;
}

static int push_context(struct pier_cuda *cuda, int device, CUcontext context)
{
	CUresult error;
	int result = 0;

	if (!context)
		context = find_primary(cuda, device);
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

int pier_cuda_enter(struct pier_cuda *cuda, int device, CUcontext context,
		    struct pier_cuda_scope *ret_scope)
{
	int result;

	relax_capture(cuda, ret_scope);
	result = push_context(cuda, device, context);
	if (result != 0)
		restore_capture(cuda, ret_scope);
	return result;
}

void pier_cuda_leave(struct pier_cuda *cuda, const struct pier_cuda_scope *scope)
{
	CUcontext context;

	cuda->call.cuCtxPopCurrent(&context);
	restore_capture(cuda, scope);
}

int pier_cuda_recognize(struct pier_cuda *cuda, int device, CUcontext *context)
{
	CUcontext primary = find_primary(cuda, device);
	unsigned int flags;
	int active = 0, result;

	if (!*context)
		return 0;
	if (!primary) {
		if (cuda->call.cuDevicePrimaryCtxGetState(device, &flags, &active) !=
			    CUDA_SUCCESS ||
		    !active)
			return 0;
		result = retain_primary(cuda, device, &primary);
		if (result != 0)
			return result;
	}
	if (*context == primary)
		*context = NULL;
	return 0;
}

/* If two threads create a stream at once, the second destroys its own. */
static CUstream keep_stream(struct pier_cuda *cuda, int device, CUstream stream)
{
	CUstream first = NULL;

	if (atomic_compare_exchange_strong(&cuda->stream[device], &first, stream))
		return stream;
	cuda->call.cuStreamDestroy(stream);
	return first;
}

/*
 * The owner of another context may destroy it, and its streams with it, so such a context
 * gets a new stream for each use.
 */
int pier_cuda_take_stream(struct pier_cuda *cuda, int device, CUcontext context,
			  CUstream *ret_stream)
{
	CUstream stream = context ? NULL : atomic_load(&cuda->stream[device]);
	CUresult error;

	if (!stream) {
		error = cuda->call.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
		if (error != CUDA_SUCCESS)
			return pier_cuda_fail(cuda, error,
					      "cuStreamCreate on CUDA device %d", device);
		if (!context)
			stream = keep_stream(cuda, device, stream);
	}
	*ret_stream = stream;
	return 0;
}

void pier_cuda_put_stream(struct pier_cuda *cuda, CUcontext context, CUstream stream)
{
	if (context)
		cuda->call.cuStreamDestroy(stream);
}
