/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_HIP_ALLOC_H
#define PIER_BACKENDS_HIP_ALLOC_H

#include "memory.h"

/* alloc(), free() and warm_up() of the backend. */
int pier_hip_alloc(const char *unit, uint64_t length, struct pier_memory *ret_memory);
void pier_hip_free(struct pier_memory *memory);
int pier_hip_warm_up(const char *unit);

#endif
