/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PRINTABLE_H
#define PIER_TOOLS_PRINTABLE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/*
 * Text from a peer, names of files and devices, and error messages may contain control
 * characters that the user's terminal would act on. Print them only through
 * print_safely() and print_line(), or through print_error() (failure.h).
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

/* Print one line through print_safely(), and end it. The format has no newline. */
void print_line(FILE *file, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
void vprint_line(FILE *file, const char *format, va_list arguments)
	__attribute__((format(printf, 2, 0)));

/*
 * Print one line as print_line() does, folded at 80 columns. The margin precedes each
 * line but the first, which has a label in these columns: only behind them it is broken,
 * between words. A word that is longer than a line is broken, too.
 */
void print_folded(FILE *file, const char *margin, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
