/* SPDX-License-Identifier: BSD-3-Clause */
#include <inttypes.h>
#include <stddef.h>

#include "json.h"

/*
 * Length of the UTF-8 sequence that starts here, by table 3-7 of the Unicode
 * standard; 0 where none does. The string ends with NUL, which no sequence
 * continues with, so nothing beyond it is read.
 */
static size_t sequence_length(const unsigned char *s)
{
	unsigned char low = 0x80, high = 0xbf;
	size_t length, i;

	if (s[0] < 0x80)
		return 1;
	if (s[0] >= 0xc2 && s[0] <= 0xdf)
		length = 2;
	else if (s[0] >= 0xe0 && s[0] <= 0xef)
		length = 3;
	else if (s[0] >= 0xf0 && s[0] <= 0xf4)
		length = 4;
	else
		return 0;
	if (s[0] == 0xe0)
		low = 0xa0;
	else if (s[0] == 0xed)
		high = 0x9f;
	else if (s[0] == 0xf0)
		low = 0x90;
	else if (s[0] == 0xf4)
		high = 0x8f;
	for (i = 1; i < length; i++, low = 0x80, high = 0xbf)
		if (s[i] < low || s[i] > high)
			return 0;
	return length;
}

static void write_string(FILE *file, const char *value)
{
	const unsigned char *s = (const unsigned char *)value;
	size_t length;

	fputc('"', file);
	for (; *s; s += length ? length : 1) {
		length = sequence_length(s);
		if (length == 0)
			fputs("\\ufffd", file);
		else if (*s == '"' || *s == '\\')
			fprintf(file, "\\%c", *s);
		else if (*s < 0x20 || *s == 0x7f)
			fprintf(file, "\\u%04x", *s);
		else
			fwrite(s, 1, length, file);
	}
	fputc('"', file);
}

static void begin_value(struct json *json, const char *name)
{
	unsigned int i;

	if (json->depth > 0) {
		fputs(json->first ? "\n" : ",\n", json->file);
		for (i = 0; i < json->depth; i++)
			fputs("  ", json->file);
	}
	if (name) {
		write_string(json->file, name);
		fputs(": ", json->file);
	}
	json->first = false;
}

void json_open(struct json *json, const char *name, char bracket)
{
	begin_value(json, name);
	fputc(bracket, json->file);
	json->depth++;
	json->first = true;
}

void json_close(struct json *json, char bracket)
{
	unsigned int i;

	json->depth--;
	if (!json->first) {
		fputc('\n', json->file);
		for (i = 0; i < json->depth; i++)
			fputs("  ", json->file);
	}
	fputc(bracket, json->file);
	json->first = false;
	if (json->depth == 0)
		fputc('\n', json->file);
}

void json_string(struct json *json, const char *name, const char *value)
{
	begin_value(json, name);
	if (value)
		write_string(json->file, value);
	else
		fputs("null", json->file);
}

void json_uint(struct json *json, const char *name, uint64_t value)
{
	begin_value(json, name);
	fprintf(json->file, "%" PRIu64, value);
}

void json_double(struct json *json, const char *name, double value)
{
	begin_value(json, name);
	fprintf(json->file, "%.6f", value);
}

void json_bool(struct json *json, const char *name, bool value)
{
	begin_value(json, name);
	fputs(value ? "true" : "false", json->file);
}
