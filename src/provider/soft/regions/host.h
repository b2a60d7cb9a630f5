/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_HOST_H
#define PIER_SOFT_HOST_H

#include <stdbool.h>
#include <stdint.h>

struct pier_provider_part;
struct soft_segment;

/* Makes host memory reachable. */
int pier_soft_attach_host(struct soft_segment *segment,
			  const struct pier_provider_part *part, int access);
/*
 * Faults in the pages of memory that does not reach the end of the address space, for
 * writing if `access` has a right to write. 0 or a positive errno.
 */
int pier_soft_populate(const char *memory, uint64_t length, int access);
/* Whether all pages of the memory are mapped. */
bool pier_soft_is_mapped(const char *memory, uint64_t length);

#endif
