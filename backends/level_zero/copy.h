/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_LEVEL_ZERO_COPY_H
#define PIER_BACKENDS_LEVEL_ZERO_COPY_H

#include "memory.h"

/* Of the backend's table. */
int pier_ze_copy_to(const struct pier_memory *memory, uint64_t offset, const void *source,
		    uint64_t length);
int pier_ze_copy_from(const struct pier_memory *memory, uint64_t offset,
		      void *destination, uint64_t length);

/* Fill device memory with zeros, and wait until it is done. */
int pier_ze_clear(const struct pier_ze_memory *state, void *pointer, size_t length);

#endif
