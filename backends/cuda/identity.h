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
 * Whether the memory is gone: wrapped memory that its owner freed, or memory of pier's
 * own after cudaDeviceReset(). Something else may be at its address. Memory that had no
 * identity at first cannot be distinguished from later memory, and counts as live.
 */
bool pier_cuda_was_freed(const struct pier_cuda_memory *memory);

/*
 * Check that the memory is still there. With a context of its device current.
 *
 * Errors: -EINVAL it is not.
 */
int pier_cuda_check_live(const struct pier_cuda_memory *memory);

/* identity() of the backend. */
int pier_cuda_identity(uint64_t address, uint64_t *ret_identity);

#endif
