/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include <string.h>

#include "core/printable.h"
#include "printable.h"

enum {
	COLUMNS = 80
};

void print_safely(FILE *file, const char *text)
{
	char piece[PIER_PIECE_MAX];

	while (*text)
		fwrite(piece, 1, pier_escape_next(&text, piece), file);
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
