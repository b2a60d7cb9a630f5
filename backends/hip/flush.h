/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_HIP_FLUSH_H
#define PIER_BACKENDS_HIP_FLUSH_H

#include "memory.h"

/* flush() of the backend. */
int pier_hip_flush(const struct pier_memory *memory,
		   const struct pier_backend_flush *range);

#endif
