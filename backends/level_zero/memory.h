/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_LEVEL_ZERO_MEMORY_H
#define PIER_BACKENDS_LEVEL_ZERO_MEMORY_H

#include <pier/backend.h>

#include "load.h"

/* pier_memory.state. */
struct pier_ze_memory {
	struct pier_ze *ze;
	struct pier_ze_device
		*device;   /* that holds it or, of host memory, one of its driver */
	unsigned int type; /* ze_memory_type_t */
	uint64_t id;	   /* as zeMemGetAllocProperties() reports it */
	/* Recognised in the application's memory: only the application frees it. */
	bool wrapped;
};

/* Of the backend's table. */
int pier_ze_find(uint64_t address, uint64_t length, struct pier_memory *ret_memory);
void pier_ze_release(struct pier_memory *memory);
int pier_ze_identity(uint64_t address, uint64_t *ret_identity);
void pier_ze_describe(const struct pier_memory *memory,
		      struct pier_memory_facts *ret_facts);
int pier_ze_export(const struct pier_memory *memory,
		   const struct pier_backend_request *request,
		   struct pier_backend_export *ret_export);
void pier_ze_close_export(struct pier_backend_export *dmabuf);

/*
 * Check that memory is used by the process that initialised the drivers, and that it was
 * not freed: the drivers take a pointer that they do not know for host memory.
 *
 * Errors: -ECHILD; -EFAULT it was freed.
 */
int pier_ze_check_memory(const struct pier_memory *memory);

#endif
