/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_LEVEL_ZERO_EXPORT_H
#define PIER_BACKENDS_LEVEL_ZERO_EXPORT_H

#include "memory.h"

/* Of the backend's table. */
int pier_ze_export(const struct pier_memory *memory,
		   const struct pier_backend_request *request,
		   struct pier_backend_export *ret_export);
void pier_ze_close_export(struct pier_backend_export *dmabuf);

#endif
