/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_HIP_UNIT_H
#define PIER_BACKENDS_HIP_UNIT_H

#include "backends/backend.h"

/* unit() and locate() of the backend. */
int pier_hip_unit(uint32_t index, struct pier_backend_unit *ret_unit);
int pier_hip_locate_memory(const struct pier_memory *memory, char ret_pci[16],
			   int *ret_numa_node);

#endif
