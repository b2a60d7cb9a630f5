/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_CUDA_EXPORT_H
#define PIER_BACKENDS_CUDA_EXPORT_H

#include "memory.h"

/* export_range() and expose() of the backend. */
int pier_cuda_export(const struct pier_memory *memory,
		     const struct pier_backend_request *wanted,
		     struct pier_backend_export *ret_export);
int pier_cuda_expose(const struct pier_memory *memory);

/*
 * Why memory cannot be exported, and the remedy. "": nothing is known against it, and the
 * driver decides.
 */
void pier_cuda_explain_export(const struct pier_cuda_memory *memory, char *ret_text,
			      size_t size);

/* Write what a user can try if a NIC refuses the export; "" if nothing is known. */
void pier_cuda_suggest_remedy(const struct pier_cuda_memory *memory, char *ret_text,
			      size_t size);

#endif
