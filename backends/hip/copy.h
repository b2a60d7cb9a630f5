/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_HIP_COPY_H
#define PIER_BACKENDS_HIP_COPY_H

#include "memory.h"

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
int pier_hip_copy_query(void *copy, bool wait);
int pier_hip_lock_host(const struct pier_memory *memory, void *addr, uint64_t length);
void pier_hip_unlock_host(const struct pier_memory *memory, void *addr);

/* Fill new memory with zeros; with its device entered. */
int pier_hip_clear(const struct pier_hip_memory *state, void *pointer, uint64_t length);

#endif
