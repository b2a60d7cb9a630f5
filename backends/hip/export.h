/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_HIP_EXPORT_H
#define PIER_BACKENDS_HIP_EXPORT_H

#include "memory.h"

/* export_range(), export_mapped() and close_export() of the backend. */
int pier_hip_export(const struct pier_memory *memory, uint64_t address, uint64_t length,
		    struct pier_backend_export *ret_export);
int pier_hip_export_mapped(const struct pier_memory *memory, uint64_t address,
			   uint64_t length, enum pier_mapping mapping,
			   struct pier_backend_export *ret_export);
void pier_hip_close_export(struct pier_backend_export *dmabuf);

#endif
