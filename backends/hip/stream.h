/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_HIP_STREAM_H
#define PIER_BACKENDS_HIP_STREAM_H

#include <stdbool.h>

#include "api.h"

/* A stream of pier's on the current device, `device`; it is kept. Errors: HIP's. */
int pier_hip_take_stream(const struct pier_hip *hip, int device,
			 struct ihipStream_t **ret_stream);

/*
 * Give a stream back. Returns true if hipDeviceReset() had destroyed it before its use:
 * the caller may try again with a new one.
 *
 * error  of the calls on it
 */
bool pier_hip_put_stream(const struct pier_hip *hip, int device,
			 struct ihipStream_t *stream, unsigned int error);

#endif
