/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_CUDA_IDENTITY_H
#define PIER_BACKENDS_CUDA_IDENTITY_H

#include <stdbool.h>
#include <stdint.h>

#include "memory.h"

/* A number of the allocation that is at an address now; false: none of CUDA's. */
bool pier_cuda_read_identity(const struct pier_cuda *cuda, uint64_t address,
			     uint64_t *ret_identity);

/*
 * Check that wrapped memory was not freed. With a context of its device current.
 *
 * Errors: -EINVAL it was.
 */
int pier_cuda_check_live(const struct pier_cuda_memory *memory);

/* identity() of the backend. */
int pier_cuda_identity(uint64_t address, uint64_t *ret_identity);

#endif
