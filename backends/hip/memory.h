/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_HIP_MEMORY_H
#define PIER_BACKENDS_HIP_MEMORY_H

#include <stdbool.h>

#include "api.h"
#include "backends/backend.h"
#include "device.h"

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
 * Check that wrapped memory was not freed. Between enter and leave.
 *
 * Errors: -EFAULT it was.
 */
int pier_hip_check_live(const struct pier_memory *memory);

/*
 * pier_hip_check_owner() and pier_hip_enter() of the device of an allocation. Call
 * pier_hip_leave() afterwards, also after a failure.
 */
int pier_hip_enter_memory(const struct pier_hip_memory *state,
			  struct pier_hip_saved *ret_saved);

/* The same with pier_hip_check_live(). */
int pier_hip_enter_live(const struct pier_memory *memory,
			struct pier_hip_saved *ret_saved);

/* The bounds that HIP reports for the memory around an address; false: none. */
bool pier_hip_read_segment(const struct pier_hip *hip, uint64_t address,
			   uint64_t *ret_start, uint64_t *ret_length);

/*
 * Export a range of one segment. Between enter and leave.
 *
 * Returns an hsa_status_t: PIER_HSA_INVALID_ALLOCATION if the range leaves the segment.
 */
unsigned int pier_hip_export_segment(const struct pier_hip *hip, uint64_t address,
				     uint64_t length, int *ret_fd, uint64_t *ret_offset);

/* segment() of the backend. */
int pier_hip_segment(const struct pier_memory *memory, uint64_t address,
		     uint64_t *ret_start, uint64_t *ret_length);

/* find(), release() and identity() of the backend. */
int pier_hip_find(uint64_t address, uint64_t length, struct pier_memory *ret_memory);
void pier_hip_release(struct pier_memory *memory);
int pier_hip_identity(uint64_t address, uint64_t *ret_identity);

#endif
