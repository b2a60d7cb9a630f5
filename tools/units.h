/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_UNITS_H
#define PIER_TOOLS_UNITS_H

#include <stddef.h>
#include <stdint.h>

/*
 * Parse a number of bytes such as "4096", "64K", "64KiB", "1M" or "2G". K, M and G
 * are powers of 1024; KB, MB and GB are powers of 1000. Returns 0 or -1.
 */
int parse_bytes(const char *text, uint64_t *ret_bytes);

/* Parse a whole number that consists of digits only. Returns 0 or -1. */
int parse_number(const char *text, uint64_t *ret_number);

/* Write "17 bytes", "1.00 MiB", ... */
void format_bytes(uint64_t bytes, char *ret_text, size_t size);

/* CLOCK_MONOTONIC, in nanoseconds. */
uint64_t now_ns(void);

#endif
