/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BUFFER_SPEC_H
#define PIER_BUFFER_SPEC_H

#include <stddef.h>

/* "NAME" or "NAME:UNIT", in pieces that point into it. */
struct pier_spec {
	const char *name;
	size_t name_length;
	const char *unit; /* to the end of the spec; NULL: there is none */
};

/*
 * NAME is 1 to 31 letters, digits and '_'; UNIT is 1 to 127 printable
 * characters without spaces, and may contain colons.
 *
 * Errors: -EINVAL it is something else, or NULL. The sentence repeats nothing of
 * it that could not be printed.
 */
int pier_parse_spec(const char *spec, struct pier_spec *ret_spec);

#endif
