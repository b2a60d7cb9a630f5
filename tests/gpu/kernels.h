/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_GPU_KERNELS_H
#define TESTS_GPU_KERNELS_H

#include "driver.h"

/*
 * Bytes of device memory as device code writes and sees them. They are those of a
 * pattern: byte `i` of pattern `seed`, so that none can lie in the wrong place unseen.
 */

/* As the kernels have it. */
uint8_t gpu_pattern(uint64_t seed, uint64_t i);

/* What the driver is given to compile. */
extern const char *const gpu_ptx;

/*
 * Load the kernels. False: the driver has no compiler for them (said in `ret_why`), and
 * the functions below go by copies of pier's in place of kernels.
 */
bool gpu_load_kernels(char *ret_why, size_t size);

/*
 * Write [offset, offset + length) of a buffer: its first byte is byte `first` of the
 * pattern. Returns 0, or -1 and says why on standard error.
 */
int gpu_fill(struct pier_buffer *buffer, size_t offset, size_t length, uint64_t seed,
	     uint64_t first);

/*
 * Compare: how many bytes differ, and the first that does, counted from offset; -1: that
 * failed, and was said on standard error.
 */
int64_t gpu_count_wrong(struct pier_buffer *buffer, size_t offset, size_t length,
			uint64_t seed, uint64_t first, uint64_t *ret_first_wrong);

#endif
