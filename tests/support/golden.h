/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TEST_GOLDEN_H
#define PIER_TEST_GOLDEN_H

/* Include cmocka.h first. */

#include <stdio.h>
#include <stdlib.h>

/*
 * Golden files: forms as written by earlier versions, in the folder PIER_TEST_GOLDEN.
 * Reads one, including the end of its line.
 */
static inline void read_golden(const char *name, char *ret_text, size_t size)
{
	const char *folder = getenv("PIER_TEST_GOLDEN");
	char path[4096];
	FILE *file;
	size_t length;

	if (!folder)
		fail_msg("PIER_TEST_GOLDEN is not set: run this by meson test");
	snprintf(path, sizeof(path), "%s/%s", folder, name);
	file = fopen(path, "r");
	assert_non_null(file);
	length = fread(ret_text, 1, size, file);
	fclose(file);
	assert_in_range(length, 1, size - 1);
	ret_text[length] = '\0';
}

#endif
