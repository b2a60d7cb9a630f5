/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_CUDA_MAPPING_H
#define PIER_BACKENDS_CUDA_MAPPING_H

#include "memory.h"

/* segment() of the backend. */
int pier_cuda_segment(const struct pier_memory *memory, uint64_t address,
		      uint64_t *ret_start, uint64_t *ret_length);

/*
 * The mapping of one cuMemMap() around an address; with a context of its device current.
 * Returns the error of cuMemGetAddressRange() if nothing else reports it, either.
 */
CUresult pier_cuda_read_mapping(const struct pier_cuda *cuda, uint64_t address,
				uint64_t *ret_start, uint64_t *ret_length);

bool pier_cuda_is_rdma_capable(const struct pier_cuda *cuda, uint64_t address);

/*
 * Read the mapping at an address and those after it that have the same properties, up to
 * the end of a range.
 *
 * ret_error  CUDA_SUCCESS if the bounds of the first mapping are known
 *
 * Returns false if cuMemMap() mapped nothing there.
 */
bool pier_cuda_read_mappings(struct pier_cuda_memory *memory, uint64_t address,
			     uint64_t length, CUresult *ret_error);

#endif
