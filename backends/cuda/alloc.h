/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_CUDA_ALLOC_H
#define PIER_BACKENDS_CUDA_ALLOC_H

#include "memory.h"

/* alloc(), and free() and release(), of the backend. */
int pier_cuda_alloc(const char *unit, uint64_t length, struct pier_memory *ret_memory);
void pier_cuda_put(struct pier_memory *memory);

/* warm_up() of the backend. */
int pier_cuda_warm_up(const char *unit);

#endif
