/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PRINTABLE_H
#define PIER_TOOLS_PRINTABLE_H

#include <stdarg.h>
#include <stdio.h>

/*
 * Text from a peer, names of files and devices, and error messages may contain control
 * characters that the user's terminal would act on. Print them only through
 * print_safely() and print_line(), or through print_error() (failure.h).
 */

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
