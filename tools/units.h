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

/* Write "17 B/s", "1.50 MB/s", ...: powers of 1000, as for NICs and disks. */
void format_rate(double bytes_per_second, char *ret_text, size_t size);

/* Write "5 s", "2 min 5 s", "3 h 20 min" or "4 d 7 h", with the seconds rounded. */
void format_duration(double seconds, char *ret_text, size_t size);

/* CLOCK_MONOTONIC, in nanoseconds. */
uint64_t now_ns(void);

#endif
