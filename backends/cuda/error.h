/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_CUDA_ERROR_H
#define PIER_BACKENDS_CUDA_ERROR_H

#include <stddef.h>

#include <pier/export.h>

#include "api.h"

/*
 * pier_fail() for a driver call that failed. The sentence is the format's, then the
 * error's name, the driver's text for it and a remedy; the errno is pier_cuda_errno().
 */
int pier_cuda_fail(const struct pier_cuda *cuda, CUresult error, const char *format, ...)
	PIER_PRINTF(3, 4);

/* The positive errno of a driver error. */
int pier_cuda_errno(CUresult error);

/* A remedy that starts with its separator, "; ", or "". */
const char *pier_cuda_hint(CUresult error);

/* "CUDA_ERROR_UNKNOWN (unknown error)", for sentences of several parts. */
void pier_cuda_describe_error(const struct pier_cuda *cuda, CUresult error,
			      char *ret_text, size_t size);

#endif
