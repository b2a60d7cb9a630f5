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

/*
 * Export a range of one segment. Between enter and leave.
 *
 * Returns an hsa_status_t: PIER_HSA_INVALID_ALLOCATION if the range leaves the segment.
 */
unsigned int pier_hip_export_segment(const struct pier_hip *hip, uint64_t address,
				     uint64_t length, int *ret_fd, uint64_t *ret_offset);

/* segment() of the backend. */
int pier_hip_segment(const struct pier_memory *memory, uint64_t address,
		     uint64_t *ret_start, uint64_t *ret_length);

#endif
