/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_CUDA_VMM_H
#define PIER_BACKENDS_CUDA_VMM_H

#include "memory.h"

/*
 * Memory of cuMemCreate(), mapped into one reservation, in segments of the same length,
 * with the device's context current. Fills in start, start_length, segment, segments and
 * rdma_capable.
 *
 * segment  0: one
 */
int pier_cuda_vmm_alloc(struct pier_cuda_memory *memory, uint64_t length,
			uint64_t segment);
void pier_cuda_vmm_free(struct pier_cuda_memory *memory);

#endif
