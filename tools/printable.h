/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PRINTABLE_H
#define PIER_TOOLS_PRINTABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/*
 * Text from a peer and file names may contain control characters that the user's
 * terminal would act on. Print them only through print_safely(), or through
 * print_error() (failure.h) on standard error.
 */

/*
 * Decode the first character of the string. Returns its length in bytes, or 0 if the
 * string is empty or does not begin with valid UTF-8.
 */
size_t decode_utf8(const char *text, uint32_t *ret_code);

/*
 * False for control and format characters that a terminal may act on (C0, DEL, C1,
 * direction marks, line separators, the byte order mark, tags) and for noncharacters.
 */
bool is_printable(uint32_t code);

/* Print the text; each byte that is not part of a printable character becomes \xNN. */
void print_safely(FILE *file, const char *text);

#endif
