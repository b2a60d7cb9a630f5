/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_LINUX_UDMABUF_H
#define PIER_BACKENDS_LINUX_UDMABUF_H

#include <stddef.h>
#include <stdint.h>

/* The limits of the kernel's udmabuf; 0: unknown. */
struct pier_udmabuf_limits {
	uint64_t size_mb; /* of one dma-buf, in MiB; itself allowed */
	uint64_t ranges;  /* of memfds in one dma-buf */
};

/*
 * Read the limits from a folder of module parameters. A parameter that is missing or not
 * positive is unknown: then the kernel decides.
 */
struct pier_udmabuf_limits pier_read_udmabuf_limits(const char *folder);

/* Describe the limits, for probe(). */
void pier_describe_udmabuf_limits(const struct pier_udmabuf_limits *limits,
				  char *ret_text, size_t size);

/* Errors: -E2BIG `length` is more than a dma-buf may have. */
int pier_check_udmabuf_length(const struct pier_udmabuf_limits *limits, uint64_t length);

#endif
