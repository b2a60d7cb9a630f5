/* SPDX-License-Identifier: BSD-3-Clause */
#include <inttypes.h>
#include <stddef.h>

#include "core/printable.h"
#include "json.h"

/* RFC 8259, section 7: a code above 16 bits is written as a surrogate pair. */
static void write_escape(FILE *file, uint32_t code)
{
	if (code > 0xffff) {
		code -= 0x10000;
		fprintf(file, "\\u%04" PRIx32, 0xd800 + (code >> 10));
		code = 0xdc00 + (code & 0x3ff);
	}
	fprintf(file, "\\u%04" PRIx32, code);
}

static void write_string(FILE *file, const char *value)
{
	uint32_t code;
	size_t length;

	fputc('"', file);
	for (; *value; value += length ? length : 1) {
		length = pier_decode_utf8(value, &code);
		if (length == 0)
			fputs("\\ufffd", file);
		else if (code == '"' || code == '\\')
			fprintf(file, "\\%c", (char)code);
		else if (pier_is_printable(code))
			fwrite(value, 1, length, file);
		else
			write_escape(file, code);
	}
	fputc('"', file);
}

static void begin_line(const struct json *json)
{
	fputc('\n', json->file);
	for (unsigned int i = 0; i < json->depth; i++)
		fputs("  ", json->file);
}

static void begin_value(struct json *json, const char *name)
{
	if (json->depth > 0 && !json->first)
		fputs(json->line ? ", " : ",", json->file);
	if (json->depth > 0 && !json->line)
		begin_line(json);
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
	json->depth--;
	if (!json->first && !json->line)
		begin_line(json);
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
