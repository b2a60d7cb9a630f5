/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_CUDA_DRIVER_H
#define PIER_BACKENDS_CUDA_DRIVER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <pier/export.h>

#include "api.h"

enum {
	/* More than any machine has; devices beyond are not seen. */
	PIER_CUDA_DEVICES = 256,
};

/* libcuda.so.1, opened. One in a process, kept for its life. */
struct pier_cuda {
	struct pier_cu_calls call;
	void *library;
	int version;		 /* of the driver: 12080 is CUDA 12.8 */
	atomic_int device_count; /* -1: cuInit() has not been called by pier */
	/* The primary context of each device, retained at its first use, or NULL. */
	_Atomic(CUcontext) primary[PIER_CUDA_DEVICES];
	/* A stream in each of these, made at its first use and kept too, or NULL. */
	_Atomic(CUstream) stream[PIER_CUDA_DEVICES];
};

/*
 * The driver, opened and initialised.
 *
 * Errors: with a sentence; -EOPNOTSUPP it is not there, is too old or does not fit the
 * kernel module; -ENODEV no device; -ECHILD in a child of fork; others of cuInit().
 */
int pier_cuda_open(struct pier_cuda **ret_cuda);

/* The same, with the sentence in `ret_why`, and nothing left in pier_error_message(). */
int pier_cuda_try_open(struct pier_cuda **ret_cuda, char *ret_why, size_t size);

/*
 * The driver where this process already has it, by whomever, and without initialising
 * it; else NULL.
 */
struct pier_cuda *pier_cuda_if_loaded(void);

/*
 * pier_fail() for a call of the driver that failed. The sentence is the format's, the
 * error's name and the driver's words, and what a user can do about it; the errno is the
 * error's (see cuda_error.c).
 */
int pier_cuda_fail(const struct pier_cuda *cuda, CUresult error, const char *format, ...)
	PIER_PRINTF(3, 4);

/* The errno of an error, positive; and a hint with its separator, or "". */
int pier_cuda_errno(CUresult error);
const char *pier_cuda_hint(CUresult error);
/* "CUDA_ERROR_UNKNOWN (unknown error)", for sentences of several parts. */
void pier_cuda_describe_error(const struct pier_cuda *cuda, CUresult error,
			      char *ret_text, size_t size);

/* -EOPNOTSUPP: this driver is too old for a call; both are named. */
int pier_cuda_fail_missing(const struct pier_cuda *cuda, const char *name);

/* 0, or -EOPNOTSUPP where the driver has no such call. */
#define PIER_CUDA_NEED(cuda, name) \
	((cuda)->call.name ? 0 : pier_cuda_fail_missing(cuda, #name))

/* What a thread had before pier_cuda_enter(), for pier_cuda_leave() to give back. */
struct pier_cuda_scope {
	bool relaxed;
	CUstreamCaptureMode mode;
};

/*
 * cuda_context.c: make a context current for this thread, above whatever is, until
 * pier_cuda_leave(). Calls meanwhile leave alone what other threads capture into graphs.
 *
 * context  NULL: the primary context of the device
 */
int pier_cuda_enter(struct pier_cuda *cuda, int device, CUcontext context,
		    struct pier_cuda_scope *ret_scope);
void pier_cuda_leave(struct pier_cuda *cuda, const struct pier_cuda_scope *scope);

/*
 * Make what is called synchronous so in the thread's current context (CU_CTX_SYNC_MEMOPS,
 * CUDA 12.1), where it has one. cuCtxSetFlags() and another thread's kernel launch may
 * wait for each other for ever (UCX's pull requests 10599 and 11705), so this is for the
 * first use of a context, and not for each transfer.
 */
CUresult pier_cuda_synchronize_context(const struct pier_cuda *cuda);

/* NULL for a device's primary context, as above. One that is not active is not made. */
int pier_cuda_recognize(struct pier_cuda *cuda, int device, CUcontext *context);

/*
 * A stream of pier's in the context that was entered. What is put there waits for no
 * other stream, and no other for it (CU_STREAM_NON_BLOCKING).
 */
int pier_cuda_take_stream(struct pier_cuda *cuda, int device, CUcontext context,
			  CUstream *ret_stream);
void pier_cuda_put_stream(struct pier_cuda *cuda, CUcontext context, CUstream stream);

/* An attribute of a device; 0: the driver does not know it; -1: it cannot be asked. */
int pier_cuda_attribute(const struct pier_cuda *cuda, int device,
			CUdevice_attribute attribute);

#endif
