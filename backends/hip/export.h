/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_HIP_EXPORT_H
#define PIER_BACKENDS_HIP_EXPORT_H

#include "memory.h"

/* export_range() and close_export() of the backend. */
int pier_hip_export(const struct pier_memory *memory,
		    const struct pier_backend_request *request,
		    struct pier_backend_export *ret_export);
void pier_hip_close_export(struct pier_backend_export *dmabuf);

#endif
