/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_LINUX_HOST_H
#define PIER_BACKENDS_LINUX_HOST_H

#include <stdint.h>

/* Huge pages of the default size. */
struct pier_huge_pages {
	uint64_t size; /* of one, in bytes; 0: the kernel has none */
	uint64_t total;
	uint64_t free;
};

/* Read a file like /proc/meminfo; all zero if it has no such lines. */
struct pier_huge_pages pier_read_huge_pages(const char *path);

#endif
