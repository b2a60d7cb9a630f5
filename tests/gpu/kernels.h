/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_GPU_KERNELS_H
#define TESTS_GPU_KERNELS_H

#include "driver.h"

/*
 * Bytes of device memory as device code writes and reads them. They form a pattern, byte
 * `i` of pattern `seed`, so every misplaced byte is detected.
 */

/* The same values as in the kernels. */
uint8_t gpu_pattern(uint64_t seed, uint64_t i);

/* The source that the driver compiles. */
extern const char *const gpu_ptx;

/*
 * Load the kernels. Returns false if the driver has no compiler for them, with the reason
 * in `ret_why`. The functions below then use pier's copies instead of kernels.
 */
bool gpu_load_kernels(char *ret_why, size_t size);

/*
 * Write [offset, offset + length) of a buffer, beginning with byte `first` of the
 * pattern. Returns 0, or -1 after printing the reason to standard error.
 */
int gpu_fill(struct pier_buffer *buffer, size_t offset, size_t length, uint64_t seed,
	     uint64_t first);

/*
 * Compare. Returns the number of different bytes, and the first of them relative to
 * offset, or -1 after printing the reason to standard error.
 */
int64_t gpu_count_wrong(struct pier_buffer *buffer, size_t offset, size_t length,
			uint64_t seed, uint64_t first, uint64_t *ret_first_wrong);

#endif
