/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_LEVEL_ZERO_UNIT_H
#define PIER_BACKENDS_LEVEL_ZERO_UNIT_H

#include "memory.h"

/* Of the backend's table. */
int pier_ze_unit(uint32_t index, struct pier_backend_unit *ret_unit);
int pier_ze_locate(const struct pier_memory *memory, char ret_pci[16],
		   int *ret_numa_node);

#endif
