/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_CUDA_CONTEXT_H
#define PIER_BACKENDS_CUDA_CONTEXT_H

#include <stdbool.h>

#include "api.h"

/* The thread's state before pier_cuda_enter(), which pier_cuda_leave() restores. */
struct pier_cuda_scope {
	bool relaxed;
	CUstreamCaptureMode mode;
};

/*
 * Push a context on this thread's stack until pier_cuda_leave(). Calls in between do not
 * disturb streams that other threads capture into graphs.
 *
 * context  NULL: the primary context of the device
 */
int pier_cuda_enter(struct pier_cuda *cuda, int device, CUcontext context,
		    struct pier_cuda_scope *ret_scope);
void pier_cuda_leave(struct pier_cuda *cuda, const struct pier_cuda_scope *scope);

/*
 * Make synchronous calls really synchronous in the thread's current context, if it has
 * one (CU_CTX_SYNC_MEMOPS, CUDA 12.1). cuCtxSetFlags() can deadlock with a kernel launch
 * of another thread (UCX's pull requests 10599 and 11705), so call this at the first use
 * of a context, not for each transfer.
 */
CUresult pier_cuda_synchronize_context(const struct pier_cuda *cuda);

/*
 * Replace a device's primary context by NULL, as above. Does not create a primary context
 * that is not active.
 */
int pier_cuda_recognize(struct pier_cuda *cuda, int device, CUcontext *context);

/*
 * A stream of pier's in the context that was entered. Its work waits for no other stream,
 * and no other stream waits for it (CU_STREAM_NON_BLOCKING).
 */
int pier_cuda_take_stream(struct pier_cuda *cuda, int device, CUcontext context,
			  CUstream *ret_stream);
void pier_cuda_put_stream(struct pier_cuda *cuda, CUcontext context, CUstream stream);

#endif
