/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_HIP_POINTER_H
#define PIER_BACKENDS_HIP_POINTER_H

#include "memory.h"

/* find(), release() and identity() of the backend. */
int pier_hip_find(uint64_t address, uint64_t length, struct pier_memory *ret_memory);
void pier_hip_release(struct pier_memory *memory);
int pier_hip_identity(uint64_t address, uint64_t *ret_identity);

#endif
