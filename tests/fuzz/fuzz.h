/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_FUZZ_H
#define PIER_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a target defines; libFuzzer or replay.c calls it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* assert(), but in every build, and seen by libFuzzer as a crash. */
#define FUZZ_CHECK(condition)                                                           \
	do {                                                                            \
		if (!(condition)) {                                                     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
			abort();                                                        \
		}                                                                       \
	} while (0)

/* The input as a string, to be freed; it ends at the first NUL in it. */
static inline char *fuzz_string(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1);

	FUZZ_CHECK(text);
	memcpy(text, data, size);
	text[size] = '\0';
	return text;
}

#endif
