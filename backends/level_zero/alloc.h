/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_LEVEL_ZERO_ALLOC_H
#define PIER_BACKENDS_LEVEL_ZERO_ALLOC_H

#include "memory.h"

/* Of the backend's table. */
int pier_ze_alloc(const char *unit, uint64_t length, struct pier_memory *ret_memory);
void pier_ze_free(struct pier_memory *memory);

#endif
