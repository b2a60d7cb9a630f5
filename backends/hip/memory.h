/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_HIP_MEMORY_H
#define PIER_BACKENDS_HIP_MEMORY_H

#include <stdbool.h>

#include "backends/backend.h"
#include "api.h"

/* Kinds of memory, by the call that made it. */
enum pier_hip_kind {
	PIER_HIP_DEVICE,
	PIER_HIP_FINE,
	PIER_HIP_HOST,
	PIER_HIP_REGISTERED,
	PIER_HIP_MANAGED,
	PIER_HIP_VIRTUAL,
	PIER_HIP_IPC,
	PIER_HIP_GRAPHICS,
};

/* pier_memory.state. */
struct pier_hip_memory {
	const struct pier_hip *hip;
	enum pier_hip_kind kind;
	int device;	   /* its ordinal */
	uint32_t segments; /* of hipMemMap(), if there are several */
	uint64_t number; /* of wrapped memory: distinguishes it from later memory; or 0 */
	/* A write to it flushes the device's host data path; NULL: it has none. */
	volatile uint32_t *flush;
};

/* Whether it is host memory. */
bool pier_hip_on_host(enum pier_hip_kind kind);

/* describe() of the backend. */
void pier_hip_describe(const struct pier_memory *memory,
		       struct pier_memory_facts *ret_facts);

/*
 * The number that clr gives each of its memory objects, which only increases
 * (amd::Memory::getUniqueId()): memory that was freed and allocated again has another.
 * Memory of a pool keeps its number from user to user, and its pages as well, so a region
 * of it stays right.
 *
 * ret_number  0: there is no such memory, or HIP does not report it. clr writes 32 bits
 *             today; 64 have room for what CUDA's attribute of that name writes.
 *
 * Returns a hipError_t.
 */
unsigned int pier_hip_read_number(const struct pier_hip *hip, uint64_t address,
				  uint64_t *ret_number);

/*
 * Check that wrapped memory was not freed. Between enter and leave.
 *
 * Errors: -EFAULT it was.
 */
int pier_hip_check_live(const struct pier_memory *memory);

#endif
