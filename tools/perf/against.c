/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "against.h"

enum {
	FILE_MOST = 64 << 20,
	NESTED_MOST = 16,
};

/* A position in JSON text that ends with NUL. Errors are sticky. */
struct json_reader {
	const char *at;
	bool bad;
};

static bool take_sign(struct json_reader *reader, char sign)
{
	reader->at += strspn(reader->at, " \t\r\n");
	if (*reader->at != sign)
		return false;
	reader->at++;
	return true;
}

static void need_sign(struct json_reader *reader, char sign)
{
	if (!take_sign(reader, sign))
		reader->bad = true;
}

/* The names and values that are compared contain no escapes. */
static void read_string(struct json_reader *reader, char *ret_text, size_t size)
{
	size_t length = 0;

	need_sign(reader, '"');
	while (!reader->bad && *reader->at && *reader->at != '"') {
		if (*reader->at == '\\' && reader->at[1])
			reader->at++;
		if (length + 1 < size)
			ret_text[length++] = *reader->at;
		reader->at++;
	}
	ret_text[length] = '\0';
	need_sign(reader, '"');
}

static double read_number(struct json_reader *reader)
{
	char *end;
	double number;

	reader->at += strspn(reader->at, " \t\r\n");
	number = strtod(reader->at, &end);
	if (end == reader->at || !(number >= 0))
		reader->bad = true;
	reader->at = end;
	return number;
}

static void skip_value(struct json_reader *reader, unsigned int nested)
{
	char name[2], close;

	reader->at += strspn(reader->at, " \t\r\n");
	if (nested > NESTED_MOST)
		reader->bad = true;
	if (*reader->at == '"') {
		read_string(reader, name, sizeof(name));
	} else if (*reader->at == '{' || *reader->at == '[') {
		close = *reader->at++ == '{' ? '}' : ']';
		while (!reader->bad && !take_sign(reader, close)) {
			if (close == '}') {
				read_string(reader, name, sizeof(name));
				need_sign(reader, ':');
			}
			skip_value(reader, nested + 1);
			take_sign(reader, ',');
		}
	} else {
		size_t length = strspn(reader->at, "+-.0123456789eEtrufalsn");

		reader->bad = reader->bad || !length;
		reader->at += length;
	}
}

/* The name of the next member of an object, or NULL at its end. */
static const char *next_member(struct json_reader *reader, char *name, size_t size)
{
	take_sign(reader, ',');
	if (reader->bad || take_sign(reader, '}'))
		return NULL;
	read_string(reader, name, size);
	need_sign(reader, ':');
	return reader->bad ? NULL : name;
}

static void read_result(struct json_reader *reader, struct earlier_result *ret_result)
{
	char name[PERF_NAME_MAX];

	need_sign(reader, '{');
	while (next_member(reader, name, sizeof(name))) {
		if (strcmp(name, "bytes") == 0)
			ret_result->size = (uint64_t)read_number(reader);
		else if (strcmp(name, "bytes_per_second") == 0)
			ret_result->bytes_per_second = read_number(reader);
		else if (strcmp(name, "p50_us") == 0)
			ret_result->median_us = read_number(reader);
		else
			skip_value(reader, 0);
	}
}

static void read_results(struct json_reader *reader, struct earlier_run *run)
{
	need_sign(reader, '[');
	while (!reader->bad && !take_sign(reader, ']')) {
		if (run->count == PERF_SIZES_MAX) {
			reader->bad = true;
			return;
		}
		read_result(reader, &run->results[run->count++]);
		take_sign(reader, ',');
	}
}

static bool parse_run(const char *text, struct earlier_run *ret_run)
{
	struct json_reader reader = { .at = text };
	char name[PERF_NAME_MAX];

	memset(ret_run, 0, sizeof(*ret_run));
	need_sign(&reader, '{');
	while (next_member(&reader, name, sizeof(name))) {
		if (strcmp(name, "test") == 0)
			read_string(&reader, ret_run->test, sizeof(ret_run->test));
		else if (strcmp(name, "results") == 0)
			read_results(&reader, ret_run);
		else
			skip_value(&reader, 0);
	}
	return !reader.bad && ret_run->test[0] && ret_run->count > 0;
}

/* Returns the text, to be freed, or NULL with errno set. */
static char *read_text(const char *path)
{
	FILE *file = fopen(path, "re");
	char *text = NULL;
	size_t length;

	if (!file)
		return NULL;
	text = malloc(FILE_MOST + 1);
	if (text) {
		length = fread(text, 1, FILE_MOST, file);
		text[length] = '\0';
		if (ferror(file)) {
			free(text);
			text = NULL;
		}
	}
	fclose(file);
	return text;
}

int read_earlier_run(const char *path, struct earlier_run *ret_run,
		     struct failure *failure)
{
	char *text = read_text(path);
	bool parsed;

	if (!text)
		return fail(failure, EXIT_FILE, "cannot read '%s': %s", path,
			    strerror(errno));
	parsed = parse_run(text, ret_run);
	free(text);
	return parsed ? 0
		      : fail(failure, EXIT_FILE,
			     "'%s' is not a result of 'pier perf --json'", path);
}

const struct earlier_result *find_earlier_result(const struct earlier_run *run,
						 uint64_t size)
{
	for (uint32_t i = 0; i < run->count; i++)
		if (run->results[i].size == size)
			return &run->results[i];
	return NULL;
}
