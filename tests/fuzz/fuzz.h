/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_FUZZ_H
#define PIER_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every target defines this function; libFuzzer or replay.c calls it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* assert() for every build. libFuzzer sees a failure as a crash. */
#define FUZZ_CHECK(condition)                                                           \
	do {                                                                            \
		if (!(condition)) {                                                     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
			abort();                                                        \
		}                                                                       \
	} while (0)

/* Returns the input up to its first NUL as a string. The caller frees it. */
static inline char *fuzz_string(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1);

	FUZZ_CHECK(text);
	memcpy(text, data, size);
	text[size] = '\0';
	return text;
}

#endif
