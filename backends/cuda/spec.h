/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_CUDA_SPEC_H
#define PIER_BACKENDS_CUDA_SPEC_H

#include <stdint.h>

#include "memory.h"

/* A parsed unit. */
struct pier_cuda_spec {
	int device;
	enum pier_cuda_kind kind;
	bool any;	  /* the kind of device memory that suits NICs best */
	uint64_t segment; /* VMM: length of each; 0: one */
};

/*
 * Read a unit: "N", "N:linear", "N:vmm", "N:vmm:SIZE", "N:pool" or "N:host";
 * NULL is "0".
 *
 * Errors: -EINVAL, with a sentence.
 */
int pier_cuda_parse_unit(const char *unit, struct pier_cuda_spec *ret_spec);

#endif
