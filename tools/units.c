/* SPDX-License-Identifier: BSD-3-Clause */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "units.h"

static const struct {
	const char *name;
	uint64_t factor;
} units[] = {
	{ "", 1 },
	{ "B", 1 },
	{ "K", 1ull << 10 },
	{ "KiB", 1ull << 10 },
	{ "KB", 1000 },
	{ "M", 1ull << 20 },
	{ "MiB", 1ull << 20 },
	{ "MB", 1000000 },
	{ "G", 1ull << 30 },
	{ "GiB", 1ull << 30 },
	{ "GB", 1000000000 },
};

static int split_number(const char *text, uint64_t *ret_number, const char **ret_rest)
{
	unsigned long long number;
	char *end;

	/* strtoull(3) accepts leading blanks and signs; reject them. */
	if (!isdigit((unsigned char)text[0]))
		return -1;
	errno = 0;
	number = strtoull(text, &end, 10);
	if (errno)
		return -1;
	*ret_number = number;
	*ret_rest = end;
	return 0;
}

int parse_number(const char *text, uint64_t *ret_number)
{
	const char *rest;
	uint64_t number;

	if (split_number(text, &number, &rest) < 0 || *rest)
		return -1;
	*ret_number = number;
	return 0;
}

int parse_bytes(const char *text, uint64_t *ret_bytes)
{
	const char *rest;
	uint64_t number;
	size_t i;

	if (split_number(text, &number, &rest) < 0)
		return -1;
	for (i = 0; i < sizeof(units) / sizeof(units[0]); i++)
		if (strcasecmp(rest, units[i].name) == 0)
			return __builtin_mul_overflow(number, units[i].factor, ret_bytes)
				       ? -1
				       : 0;
	return -1;
}

void format_bytes(uint64_t bytes, char *ret_text, size_t size)
{
	static const char *const names[] = { "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	double value = (double)bytes / 1024;
	size_t i = 0;

	if (bytes < 1024) {
		snprintf(ret_text, size, "%" PRIu64 " byte%s", bytes,
			 bytes == 1 ? "" : "s");
		return;
	}
	/* 1023.995 would be rounded to 1024.00 of the smaller unit. */
	for (; value >= 1023.995 && i + 1 < sizeof(names) / sizeof(names[0]); i++)
		value /= 1024;
	snprintf(ret_text, size, "%.2f %s", value, names[i]);
}

void format_rate(double bytes_per_second, char *ret_text, size_t size)
{
	static const char *const names[] = { "KB/s", "MB/s", "GB/s", "TB/s" };
	double value = bytes_per_second / 1000;
	size_t i = 0;

	if (bytes_per_second < 999.5) {
		snprintf(ret_text, size, "%.0f B/s", bytes_per_second);
		return;
	}
	for (; value >= 999.995 && i + 1 < sizeof(names) / sizeof(names[0]); i++)
		value /= 1000;
	snprintf(ret_text, size, "%.2f %s", value, names[i]);
}

void format_duration(double seconds, char *ret_text, size_t size)
{
	/* Far beyond any copy, and far below the largest integer. */
	uint64_t whole = seconds < 1e15 ? (uint64_t)(seconds + 0.5) : 1000000000000000;
	uint64_t minutes = whole / 60, hours = minutes / 60;

	if (hours >= 24)
		snprintf(ret_text, size, "%" PRIu64 " d %" PRIu64 " h", hours / 24,
			 hours % 24);
	else if (hours)
		snprintf(ret_text, size, "%" PRIu64 " h %" PRIu64 " min", hours,
			 minutes % 60);
	else if (minutes)
		snprintf(ret_text, size, "%" PRIu64 " min %" PRIu64 " s", minutes,
			 whole % 60);
	else
		snprintf(ret_text, size, "%" PRIu64 " s", whole);
}

uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
