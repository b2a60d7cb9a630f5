/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_GPU_MEMORY_H
#define TESTS_GPU_MEMORY_H

#include "driver.h"

enum {
	KIND_LENGTH = GPU_MIB,
};

/* A kind of memory that the drivers allocate. */
struct kind {
	const char *name;
	const char *vendor; /* the only one that has it, or NULL */
	/* They are called with the context current, and return the driver's error. */
	unsigned int (*take)(uint64_t *ret_address);
	unsigned int (*give)(uint64_t address);
	const char *named[2]; /* the beginning of pier's name for it: CUDA, HIP */
	const char *unasked; /* the vendor whose driver must not be asked for an export */
	uint64_t length;     /* of the allocation */
	CUdevice_attribute attribute; /* that a device of CUDA must have, or 0 */
	bool host;
	bool plain; /* host memory of the application, unless the driver knows its bounds
		     */
};

/* Ends with an entry without a name. */
extern const struct kind kinds[];

/* The option with which gpu_kinds is the owner of memory of another process. */
#define KIND_OWN "--own-shared"
int kind_own_shared(void);

#endif
