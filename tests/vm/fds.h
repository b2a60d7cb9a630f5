/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_VM_FDS_H
#define TESTS_VM_FDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An fd that can be passed as a dma-buf to a registration. */

struct target {
	const char *name;
	int fd;
	uint64_t size; /* 0: not a dma-buf */
};

enum {
	/* The first targets, in this order. */
	TARGET_UDMABUF,
	TARGET_PIECES, /* a udmabuf of several ranges */
	TARGET_PAGE,   /* of one page */
	TARGET_ZERO,   /* TARGET_UDMABUF, as fd 0 */
	UDMABUFS,
	/* If the kernel has heaps. */
	TARGET_HEAP = UDMABUFS,
	TARGET_READ_ONLY,

	MAX_TARGETS = 32,
};

struct targets {
	struct target list[MAX_TARGETS];
	size_t count;
	size_t dmabufs; /* the first ones; all others are no dma-bufs */
	int saved_stdin;
};

/* Returns false, with the reason to skip, if dma-bufs cannot be created. */
bool targets_open(struct targets *targets, uint64_t page, char *ret_reason, size_t size);
void targets_close(struct targets *targets);

#endif
