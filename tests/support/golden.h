/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TEST_GOLDEN_H
#define PIER_TEST_GOLDEN_H

/* After cmocka.h. */

#include <stdio.h>
#include <stdlib.h>

/*
 * Golden files: forms as earlier versions wrote them, in the folder that
 * PIER_TEST_GOLDEN names. Reads one, the end of its line included.
 */
static inline void read_golden(const char *name, char *ret_text, size_t size)
{
	const char *folder = getenv("PIER_TEST_GOLDEN");
	char path[4096];
	FILE *file;
	size_t length;

	assert_non_null(folder);
	snprintf(path, sizeof(path), "%s/%s", folder, name);
	file = fopen(path, "r");
	assert_non_null(file);
	length = fread(ret_text, 1, size, file);
	fclose(file);
	assert_in_range(length, 1, size - 1);
	ret_text[length] = '\0';
}

#endif
