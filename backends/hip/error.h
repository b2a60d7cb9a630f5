/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_HIP_ERROR_H
#define PIER_BACKENDS_HIP_ERROR_H

#include <pier/export.h>

#include "api.h"

/* The positive errno of a hipError_t. */
int pier_hip_errno(unsigned int error);

/*
 * pier_fail() for a call that failed: the sentence, the error's name and number, and a
 * remedy if there is one.
 */
int pier_hip_fail(const struct pier_hip *hip, unsigned int error, const char *format, ...)
	PIER_PRINTF(3, 4);
int pier_hsa_fail(unsigned int status, const char *format, ...) PIER_PRINTF(2, 3);

#endif
