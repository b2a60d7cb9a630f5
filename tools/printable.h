/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PRINTABLE_H
#define PIER_TOOLS_PRINTABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/*
 * Text from a peer or from a file name may hold control characters, with which
 * it could steer the user's terminal. Print it with print_safely() only; for a line on
 * standard error there is print_error() (failure.h).
 */

/*
 * The character that begins the string, and its length in bytes; 0 if these are
 * not UTF-8, or the string is empty.
 */
size_t decode_utf8(const char *text, uint32_t *ret_code);

/*
 * False for control and format characters that a terminal may act on: C0, DEL,
 * C1, marks of direction, separators of lines, the byte order mark, tags, and
 * codes that are no characters.
 */
bool is_printable(uint32_t code);

/* Everything else than printable characters in UTF-8 appears as \xNN, byte by byte. */
void print_safely(FILE *file, const char *text);

#endif
