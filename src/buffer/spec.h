/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BUFFER_SPEC_H
#define PIER_BUFFER_SPEC_H

#include <stddef.h>

#include <pier/backend.h>

/* The parts of "NAME" or "NAME:UNIT"; they point into the text. */
struct pier_spec {
	const char *name;
	size_t name_length;
	const char *unit; /* up to the end of the text; NULL: none */
};

/*
 * NAME is 1 to 31 letters, digits and '_'; UNIT is 1 to 127 printable
 * characters without spaces, and may contain colons.
 *
 * Errors: -EINVAL the text has another form, or is NULL. The sentence repeats only
 * printable characters of it.
 */
int pier_parse_spec(const char *spec, struct pier_spec *ret_spec);

/*
 * The same, and the backend that it names.
 *
 * Errors: also -ENOENT there is no such backend; the sentence lists those that exist.
 */
int pier_find_by_spec(const char *spec, struct pier_spec *ret_spec,
		      const struct pier_backend **ret_backend);

#endif
