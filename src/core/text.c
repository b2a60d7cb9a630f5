/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "error.h"
#include "text.h"

void pier_append_text(char *text, size_t size, const char *format, ...)
{
	size_t used = strlen(text);
	va_list args;

	va_start(args, format);
	vsnprintf(text + used, size - used, format, args);
	va_end(args);
}

static void write_digits(char *ret_text, const uint8_t *wire, size_t length)
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < length; i++) {
		*ret_text++ = digits[wire[i] >> 4];
		*ret_text++ = digits[wire[i] & 15];
	}
	*ret_text = '\0';
}

int pier_hex_value(char digit)
{
	if (digit >= '0' && digit <= '9')
		return digit - '0';
	if (digit >= 'a' && digit <= 'f')
		return digit - 'a' + 10;
	return digit >= 'A' && digit <= 'F' ? digit - 'A' + 10 : -1;
}

/* Reads at most `size` pairs of digits. Returns where it stopped. */
static const char *read_digits(const char *text, uint8_t *ret_wire, size_t size,
			       size_t *ret_length)
{
	size_t length = 0;

	for (; length < size; text += 2) {
		int high = pier_hex_value(text[0]);
		int low = high < 0 ? -1 : pier_hex_value(text[1]);

		if (low < 0)
			break;
		ret_wire[length++] = (uint8_t)(high << 4 | low);
	}
	*ret_length = length;
	return text;
}

int pier_wire_to_text(const char *prefix, const uint8_t *wire, size_t length,
		      char *ret_text, size_t size)
{
	size_t begin = strlen(prefix), digits = 2 * length + 1;

	if (size < begin + digits)
		return pier_fail(ENOSPC,
				 "the text \"%s...\" needs %zu bytes, %zu are there",
				 prefix, begin + digits, size);
	memcpy(ret_text, prefix, begin);
	write_digits(ret_text + begin, wire, length);
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
	end = read_digits(digits, ret_wire, size, &length);
	if (*skip_blanks(end) != '\0')
		return pier_fail(EBADMSG,
				 "text \"%s...\": no pair of hexadecimal digits at digit "
				 "%td, or too long",
				 prefix, end - digits + 1);
	*ret_length = length;
	return 0;
}
