/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_CUDA_FLUSH_H
#define PIER_BACKENDS_CUDA_FLUSH_H

#include "backends/backend.h"
#include "memory.h"

/* Whether neither order nor NIC matter to a flush: see any_order in <pier/backend.h>. */
bool pier_cuda_flushes_alone(const struct pier_cuda_memory *memory);

/* flush() of the backend. */
int pier_cuda_flush(const struct pier_memory *memory,
		    const struct pier_backend_flush *range);

#endif
