/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_CUDA_DRIVER_H
#define PIER_BACKENDS_CUDA_DRIVER_H

#include <stddef.h>

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

#endif
