/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_HIP_VIRTUAL_H
#define PIER_BACKENDS_HIP_VIRTUAL_H

#include <stdbool.h>

#include "memory.h"

/* The bounds that HIP reports for the memory around an address; false: none. */
bool pier_hip_read_segment(const struct pier_hip *hip, uint64_t address,
			   uint64_t *ret_start, uint64_t *ret_length);

/* Add to memory that was just found the segments that follow it, up to `wanted`. */
void pier_hip_add_segments(struct pier_memory *memory, uint64_t wanted);

/* segment() of the backend. */
int pier_hip_segment(const struct pier_memory *memory, uint64_t address,
		     uint64_t *ret_start, uint64_t *ret_length);

#endif
