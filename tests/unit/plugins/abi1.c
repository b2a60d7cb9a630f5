/* SPDX-License-Identifier: BSD-3-Clause */
/* The start of a backend of ABI 1, whose symbol was the table itself. */
#include <stdint.h>

#include <pier/export.h>

struct old_backend {
	uint32_t abi;
	uint32_t size;
};

PIER_API extern const struct old_backend pier_backend;

const struct old_backend pier_backend = { .abi = 1, .size = 208 };
