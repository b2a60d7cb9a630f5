/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_HIP_COPY_H
#define PIER_BACKENDS_HIP_COPY_H

#include <stdbool.h>

#include "api.h"
#include "memory.h"

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

/*
 * copy_to(), copy_from(), copy_start(), copy_query(), lock_host() and unlock_host() of
 * the backend.
 */
int pier_hip_copy_to(const struct pier_memory *memory, uint64_t offset,
		     const void *source, uint64_t length);
int pier_hip_copy_from(const struct pier_memory *memory, uint64_t offset,
		       void *destination, uint64_t length);
int pier_hip_copy_start(const struct pier_memory *memory,
			const struct pier_backend_copy *copy, void **ret_copy);
int pier_hip_copy_query(void *copy);
int pier_hip_lock_host(const struct pier_memory *memory, void *addr, uint64_t length);
void pier_hip_unlock_host(const struct pier_memory *memory, void *addr);

/* Fill new memory with zeros; with its device entered. */
int pier_hip_clear(const struct pier_hip_memory *state, void *pointer, uint64_t length);

/* flush() of the backend. */
int pier_hip_flush(const struct pier_memory *memory,
		   const struct pier_backend_flush *range);

#endif
