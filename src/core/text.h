/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CORE_TEXT_H
#define PIER_CORE_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include <pier/export.h>

/* Print to the end of a text of at most `size` bytes, which is cut if it has no room. */
void pier_append_text(char *text, size_t size, const char *format, ...) PIER_PRINTF(3, 4);

/* The value of a hexadecimal digit of either case; -1: it is none. */
int pier_hex_value(char digit);

/*
 * The text form of what has a wire form: a prefix that names it, "pier-endpoint:",
 * and the wire form in hexadecimal.
 */

/*
 * Write the text with its final NUL.
 *
 * Errors: -ENOSPC size is too small.
 */
int pier_wire_to_text(const char *prefix, const uint8_t *wire, size_t length,
		      char *ret_text, size_t size);

/*
 * Read a text, which may be hostile or NULL, to the wire form of at most `size`
 * bytes. Blanks around it are skipped; digits may be of either case.
 *
 * Errors: -EBADMSG not such a text, or longer.
 */
int pier_wire_from_text(const char *prefix, const char *text, uint8_t *ret_wire,
			size_t size, size_t *ret_length);

#endif
