/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>

#include "spec.h"
#include "core/error.h"

enum {
	NAME_LONGEST = 31,
	UNIT_LONGEST = 127,
};

/* Not isalnum(3): the answer must not depend on the locale. */
static bool is_name_character(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
	       (c >= '0' && c <= '9') || c == '_';
}

static bool is_unit_character(char c)
{
	return c > ' ' && c <= '~';
}

static size_t accepted_length(const char *text, bool (*accepts)(char))
{
	size_t length = 0;

	while (accepts(text[length]))
		length++;
	return length;
}

static int parse_unit(const char *unit)
{
	size_t length = accepted_length(unit, is_unit_character);

	if (unit[length])
		return pier_fail(EINVAL,
				 "memory spec: character %zu of the unit is 0x%02x, not "
				 "printable",
				 length + 1, (unsigned char)unit[length]);
	if (length == 0 || length > UNIT_LONGEST)
		return pier_fail(EINVAL,
				 "memory spec: the unit after the colon has %zu "
				 "characters, not 1 to %d",
				 length, UNIT_LONGEST);
	return 0;
}

int pier_parse_spec(const char *spec, struct pier_spec *ret_spec)
{
	const char *unit = NULL;
	size_t length;

	if (!spec)
		return pier_fail(EINVAL, "memory spec: NULL, not NAME or NAME:UNIT");
	length = accepted_length(spec, is_name_character);
	if (spec[length] && spec[length] != ':')
		return pier_fail(
			EINVAL,
			"memory spec: character %zu of the name is 0x%02x, not a "
			"letter, digit or _",
			length + 1, (unsigned char)spec[length]);
	if (length == 0 || length > NAME_LONGEST)
		return pier_fail(EINVAL,
				 "memory spec: the name has %zu characters, not 1 to %d",
				 length, NAME_LONGEST);
	if (spec[length] == ':') {
		unit = spec + length + 1;
		if (parse_unit(unit) != 0)
			return -EINVAL;
	}
	*ret_spec = (struct pier_spec){
		.name = spec,
		.name_length = length,
		.unit = unit,
	};
	return 0;
}
