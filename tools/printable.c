/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include <string.h>

#include "printable.h"

enum {
	COLUMNS = 80
};

/* The length, from the first byte, and the range of the second: Unicode, table 3-7. */
static size_t sequence_length(const unsigned char *s, unsigned char *ret_low,
			      unsigned char *ret_high)
{
	*ret_low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80;
	*ret_high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
	if (s[0] >= 0xc2 && s[0] <= 0xdf)
		return 2;
	if (s[0] >= 0xe0 && s[0] <= 0xef)
		return 3;
	return s[0] >= 0xf0 && s[0] <= 0xf4 ? 4 : 0;
}

size_t decode_utf8(const char *text, uint32_t *ret_code)
{
	const unsigned char *s = (const unsigned char *)text;
	unsigned char low, high;
	size_t length, i;
	uint32_t code;

	*ret_code = s[0];
	if (s[0] < 0x80)
		return s[0] != '\0';
	length = sequence_length(s, &low, &high);
	code = s[0] & (0x7fu >> length);
	/* The terminating NUL is out of range, so the loop stops there. */
	for (i = 1; i < length; i++, low = 0x80, high = 0xbf) {
		if (s[i] < low || s[i] > high)
			return 0;
		code = code << 6 | (s[i] & 0x3fu);
	}
	*ret_code = code;
	return length;
}

bool is_printable(uint32_t code)
{
	static const struct {
		uint32_t first, last;
	} refused[] = {
		{ 0x0, 0x1f },	      { 0x7f, 0x9f },	  { 0x61c, 0x61c },
		{ 0x200b, 0x200f },   { 0x2028, 0x202e }, { 0x2060, 0x206f },
		{ 0xfdd0, 0xfdef },   { 0xfeff, 0xfeff }, { 0xfff9, 0xfffb },
		{ 0xe0000, 0xe0fff },
	};
	size_t i;

	for (i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
		if (code >= refused[i].first && code <= refused[i].last)
			return false;
	/* The last two codes of every plane are noncharacters. */
	return (code & 0xfffe) != 0xfffe;
}

void print_safely(FILE *file, const char *text)
{
	uint32_t code;
	size_t length;

	for (; *text; text += length) {
		length = decode_utf8(text, &code);
		if (length && is_printable(code)) {
			fwrite(text, 1, length, file);
			continue;
		}
		/* Escape one byte, then look for a character again. */
		length = 1;
		fprintf(file, "\\x%02x", (unsigned char)*text);
	}
}

/* As one write(2), so that lines of several processes do not mix. */
static void print_whole(FILE *file, const char *text)
{
	char *line = NULL;
	size_t length;
	FILE *memory = open_memstream(&line, &length);

	print_safely(memory ? memory : file, text);
	fputc('\n', memory ? memory : file);
	if (memory && fclose(memory) == 0)
		fwrite(line, 1, length, file);
	free(line);
}

void vprint_line(FILE *file, const char *format, va_list arguments)
{
	char *line;
	int length = vasprintf(&line, format, arguments);

	print_whole(file, length < 0 ? "pier: out of memory" : line);
	if (length >= 0)
		free(line);
}

void print_line(FILE *file, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vprint_line(file, format, arguments);
	va_end(arguments);
}

/* The bytes of valid UTF-8 that fit in the columns; the first ones are not broken. */
static size_t fitting_length(const char *text, size_t columns, size_t unbroken)
{
	size_t bytes = 0, space = 0;

	for (size_t column = 0; text[bytes] != '\n'; column++) {
		if (text[bytes] == ' ' && column >= unbroken &&
		    (!bytes || text[bytes - 1] != ' '))
			space = bytes;
		if (column == columns)
			return space ? space : bytes;
		do
			bytes++;
		while (((unsigned char)text[bytes] & 0xc0) == 0x80);
	}
	return bytes;
}

static void write_folded(FILE *file, const char *margin, const char *line)
{
	size_t unbroken = strlen(margin), columns = COLUMNS, length;

	for (;;) {
		length = fitting_length(line, columns, unbroken);
		fwrite(line, 1, length, file);
		line += length;
		if (*line == '\n')
			break;
		line += strspn(line, " ");
		fprintf(file, "\n%s", margin);
		columns = COLUMNS - strlen(margin);
		unbroken = 0;
	}
	fputc('\n', file);
}

void print_folded(FILE *file, const char *margin, const char *format, ...)
{
	char *line = NULL;
	size_t size;
	FILE *memory = open_memstream(&line, &size);
	va_list arguments;

	/* Escaped first: \xNN is longer than the byte. */
	va_start(arguments, format);
	vprint_line(memory ? memory : file, format, arguments);
	va_end(arguments);
	if (memory && fclose(memory) == 0)
		write_folded(file, margin, line);
	free(line);
}
