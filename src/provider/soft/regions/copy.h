/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_COPY_H
#define PIER_SOFT_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct soft_vector;

/* Memory that cannot fault, and is also in a file. */
struct soft_extent {
	char *memory;
	int fd; /* -1: reachable by the mapping only */
	uint64_t offset;
	size_t length;
};

/*
 * Copies from the vector into the extent, or back if the vector is written to, as much as
 * both have, and drops the copied bytes from the vector. The copy ends at memory that has
 * vanished; if that is the first byte, it fails with EFAULT.
 */
ssize_t pier_soft_copy(struct soft_vector *vector, const struct soft_extent *extent);
/* The same, bracketed by pier_soft_vector_sync(). */
ssize_t pier_soft_copy_synced(struct soft_vector *vector,
			      const struct soft_extent *extent);

#endif
