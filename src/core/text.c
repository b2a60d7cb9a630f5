/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>

#include <sodium.h>

#include "error.h"
#include "text.h"

int pier_wire_to_text(const char *prefix, const uint8_t *wire, size_t length,
		      char *ret_text, size_t size)
{
	size_t begin = strlen(prefix), digits = 2 * length + 1;

	if (size < begin + digits)
		return pier_fail(ENOSPC,
				 "the text \"%s...\" needs %zu bytes, %zu are there",
				 prefix, begin + digits, size);
	memcpy(ret_text, prefix, begin);
	sodium_bin2hex(ret_text + begin, digits, wire, length);
	return 0;
}

static const char *skip_blanks(const char *text)
{
	return text + strspn(text, " \t\r\n");
}

int pier_wire_from_text(const char *prefix, const char *text, uint8_t *ret_wire,
			size_t size, size_t *ret_length)
{
	const char *digits, *end;
	size_t length;

	text = skip_blanks(text ? text : "");
	if (strncmp(text, prefix, strlen(prefix)) != 0)
		return pier_fail(EBADMSG, "this text does not begin with \"%s\"", prefix);
	digits = text + strlen(prefix);
	if (sodium_hex2bin(ret_wire, size, digits, strlen(digits), NULL, &length, &end) ||
	    *skip_blanks(end) != '\0')
		return pier_fail(EBADMSG,
				 "text \"%s...\": no pair of hexadecimal digits at digit "
				 "%td, or too long",
				 prefix, end - digits + 1);
	*ret_length = length;
	return 0;
}
