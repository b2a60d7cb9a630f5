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

/*
 * The properties of the allocation at an address. Returns false if it is in no memory of
 * that device's driver.
 *
 * ret_holder  the device that holds it, or NULL for host memory; may be NULL
 */
bool pier_ze_read_properties(const struct pier_ze *ze,
			     const struct pier_ze_device *device, uint64_t address,
			     struct pier_ze_memory_properties *ret_properties,
			     struct _ze_device_handle_t **ret_holder);

/*
 * Check that memory is used by the process that initialised the drivers, and that it was
 * not freed: the drivers take a pointer that they do not know for host memory.
 *
 * Errors: -ECHILD; -EFAULT it was freed.
 */
int pier_ze_check_memory(const struct pier_memory *memory);

#endif
