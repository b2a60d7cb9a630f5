/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_CUDA_DRIVER_H
#define PIER_BACKENDS_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>

#include <pier/export.h>

#include "api.h"

/*
 * The driver, opened and initialised.
 *
 * Errors: with a sentence; -EOPNOTSUPP it is not installed, is too old or does not match
 * the kernel module; -ENODEV no device; -ECHILD in a child of fork; others of cuInit().
 */
int pier_cuda_open(struct pier_cuda **ret_cuda);

/* The same; the sentence goes to `ret_why` and not to pier_error_message(). */
int pier_cuda_try_open(struct pier_cuda **ret_cuda, char *ret_why, size_t size);

/*
 * The driver if this process has loaded it, for pier or for others; NULL if not. Does not
 * initialise it.
 */
struct pier_cuda *pier_cuda_if_loaded(void);

/* -EOPNOTSUPP: this driver is too old for a call; the sentence names both. */
int pier_cuda_fail_missing(const struct pier_cuda *cuda, const char *name);

/* 0, or -EOPNOTSUPP if the driver has no such call. */
#define PIER_CUDA_NEED(cuda, name) \
	((cuda)->call.name ? 0 : pier_cuda_fail_missing(cuda, #name))

/* An attribute of a device; 0: the driver does not know it; -1: the query failed. */
int pier_cuda_attribute(const struct pier_cuda *cuda, int device,
			CUdevice_attribute attribute);

/*
 * Returns 0 for CUDA_SUCCESS; pier_fail() for a driver call that failed. The sentence is
 * the format's, then the error's name, the driver's text for it and a remedy; the errno
 * is pier_cuda_errno().
 */
int pier_cuda_check(const struct pier_cuda *cuda, CUresult error, const char *format, ...)
	PIER_PRINTF(3, 4);

/* Log a call that failed, and whose failure changes nothing for the caller. */
void pier_cuda_warn(const struct pier_cuda *cuda, CUresult error, const char *step,
		    uint64_t address);

/* The positive errno of a driver error. */
int pier_cuda_errno(CUresult error);

/* A remedy that starts with its separator, "; ", or "". */
const char *pier_cuda_hint(CUresult error);

/* "CUDA_ERROR_UNKNOWN (unknown error)", for sentences of several parts. */
void pier_cuda_describe_error(const struct pier_cuda *cuda, CUresult error,
			      char *ret_text, size_t size);

/* The thread's state before pier_cuda_enter(), which pier_cuda_leave() restores. */
struct pier_cuda_saved {
	bool entered;
	bool relaxed;
	CUstreamCaptureMode mode;
};

/*
 * Push a context on this thread's stack until pier_cuda_leave(). Calls in between do not
 * disturb streams that other threads capture into graphs. Call pier_cuda_leave() after
 * every enter, also after one that failed.
 *
 * context  NULL: the primary context of the device
 */
int pier_cuda_enter(struct pier_cuda *cuda, int device, CUcontext context,
		    struct pier_cuda_saved *ret_saved);
void pier_cuda_leave(struct pier_cuda *cuda, const struct pier_cuda_saved *saved);

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
