/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_CUDA_FIND_H
#define PIER_BACKENDS_CUDA_FIND_H

#include "memory.h"

/* find() of the backend. */
int pier_cuda_find(uint64_t address, uint64_t length, struct pier_memory *ret_memory);

#endif
