/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_CUDA_COPY_H
#define PIER_BACKENDS_CUDA_COPY_H

#include "backends/backend.h"
#include "memory.h"

/* copy_to(), copy_from(), copy_start(), copy_query(), lock_host() and unlock_host() of
 * the backend. */
int pier_cuda_copy_to(const struct pier_memory *memory, uint64_t offset,
		      const void *source, uint64_t length);
int pier_cuda_copy_between(const struct pier_memory *to, uint64_t to_offset,
			   const struct pier_memory *from, uint64_t from_offset,
			   uint64_t length);
int pier_cuda_copy_from(const struct pier_memory *memory, uint64_t offset,
			void *destination, uint64_t length);
int pier_cuda_copy_start(const struct pier_memory *memory,
			 const struct pier_backend_copy *copy, void **ret_copy);
int pier_cuda_copy_query(void *copy);
int pier_cuda_lock_host(const struct pier_memory *memory, void *addr, uint64_t length);
void pier_cuda_unlock_host(const struct pier_memory *memory, void *addr);

/* Fill an allocation with zeros; with its context entered. */
int pier_cuda_clear(const struct pier_cuda_memory *memory);

/* Whether neither order nor NIC matter to a flush: see any_order in <pier/backend.h>. */
bool pier_cuda_flushes_alone(const struct pier_cuda_memory *memory);

/* flush() of the backend. */
int pier_cuda_flush(const struct pier_memory *memory,
		    const struct pier_backend_flush *range);

#endif
