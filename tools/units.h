/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_UNITS_H
#define PIER_TOOLS_UNITS_H

#include <stddef.h>
#include <stdint.h>

/*
 * Read "4096", "64K", "64KiB", "1M", "2G": binary, as a count of bytes; KB, MB
 * and GB are powers of 1000. Returns 0 or -1.
 */
int parse_bytes(const char *text, uint64_t *ret_bytes);

/* Read a whole number, digits only. Returns 0 or -1. */
int parse_number(const char *text, uint64_t *ret_number);

/* Write "17 bytes", "1.00 MiB", ... */
void format_bytes(uint64_t bytes, char *ret_text, size_t size);

/* Monotonic time. */
uint64_t now_ns(void);

#endif
