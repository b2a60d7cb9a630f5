/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_CUDA_FLUSH_H
#define PIER_BACKENDS_CUDA_FLUSH_H

#include "backends/backend.h"

/* flush() of the backend. */
int pier_cuda_flush(const struct pier_memory *memory,
		    const struct pier_backend_flush *range);

#endif
