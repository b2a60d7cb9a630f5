/* SPDX-License-Identifier: BSD-3-Clause */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fact.h"
#include "failure.h"

static const char first_line[] = "# pier doctor facts 1";
static const char last_line[] = "end";

/* A machine with many devices has a tenth of this. */
enum {
	LINES_MAX = 20000,
	LINE_MAX_BYTES = 256 << 10
};

static const struct {
	const char *sign;
	enum fact_kind kind;
} signs[] = {
	{ " = ", FACT_CONTENT },
	{ " -> ", FACT_LINK },
	{ " ! ", FACT_ERROR },
};

/* blanks: whether they are kept; a path must not contain the signs. */
static void write_text(FILE *file, const char *text, bool blanks)
{
	for (; *text; text++) {
		unsigned char byte = (unsigned char)*text;

		if (byte == '\\')
			fputs("\\\\", file);
		else if (byte < 0x20 || byte > 0x7e || (byte == ' ' && !blanks))
			fprintf(file, "\\x%02x", byte);
		else
			fputc(byte, file);
	}
}

static void write_fact(FILE *file, const struct fact *fact)
{
	for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++) {
		if (signs[i].kind != fact->kind)
			continue;
		write_text(file, fact->path, false);
		if (fact->text[0])
			fputs(signs[i].sign, file);
		else
			fputs(" =", file);
		write_text(file, fact->text, true);
		fputc('\n', file);
	}
}

static int fail_file(struct failure *failure, const char *verb, const char *name)
{
	return fail(failure, EXIT_FILE, "cannot %s '%s': %s", verb, name,
		    strerror(errno));
}

int facts_save(const struct facts *facts, const char *name, struct failure *failure)
{
	FILE *file = fopen(name, "we");
	bool failed;

	if (!file)
		return fail_file(failure, "write", name);
	fprintf(file, "%s\n", first_line);
	for (size_t i = 0; i < facts->count; i++)
		write_fact(file, &facts->list[i]);
	fprintf(file, "%s\n", last_line);
	failed = ferror(file);
	if (fclose(file) != 0 || failed)
		return fail_file(failure, "write", name);
	return 0;
}

/* In place. False: there is a \ that begins neither \\ nor \xNN. */
static bool read_text(char *text)
{
	char *to = text, digits[3] = "";

	for (; *text; text++) {
		if (*text != '\\') {
			*to++ = *text;
		} else if (text[1] == '\\') {
			*to++ = *++text;
		} else if (text[1] == 'x' && isxdigit((unsigned char)text[2]) &&
			   isxdigit((unsigned char)text[3])) {
			memcpy(digits, text + 2, 2);
			*to++ = (char)strtol(digits, NULL, 16);
			text += 3;
		} else {
			return false;
		}
	}
	*to = '\0';
	return true;
}

/* The sign that comes first: a content may contain another one. */
static bool split_line(char *line, char **ret_text, enum fact_kind *ret_kind)
{
	char *first = NULL;

	for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++) {
		char *at = strstr(line, signs[i].sign);

		if (!at || (first && at > first))
			continue;
		first = at;
		*ret_text = at + strlen(signs[i].sign);
		*ret_kind = signs[i].kind;
	}
	if (first)
		*first = '\0';
	return first != NULL;
}

static bool take_line(struct facts *facts, char *line)
{
	size_t length = strlen(line);
	enum fact_kind kind;
	char *text;

	if (line[0] == '\0' || line[0] == '#')
		return true;
	/* Of an empty content, editors remove the space. */
	if (length >= 2 && strcmp(line + length - 2, " =") == 0) {
		line[length - 2] = '\0';
		text = line + length - 1;
		*text = '\0';
		kind = FACT_CONTENT;
	} else if (!split_line(line, &text, &kind)) {
		return false;
	}
	if (!read_text(line) || !read_text(text) || strlen(line) >= FACT_PATH_MAX)
		return false;
	fact_add(facts, line, kind, text);
	return true;
}

/* A line of the file, without its end. False: it is too long, or contains a NUL. */
static bool end_line(FILE *file, char *line)
{
	size_t length = strlen(line);

	if (length > 0 && line[length - 1] == '\n')
		line[length - 1] = '\0';
	else
		return feof(file);
	return true;
}

static int read_lines(struct facts *facts, FILE *file, const char *name,
		      struct failure *failure)
{
	char *line = require_memory(malloc(LINE_MAX_BYTES));
	size_t number = 0;
	bool ended = false;
	int result = 0;

	while (result == 0 && fgets(line, LINE_MAX_BYTES, file)) {
		bool whole = end_line(file, line);

		number++;
		if (number == 1 && strcmp(line, first_line) != 0)
			result = fail(failure, EXIT_FILE,
				      "'%s' has no facts of pier doctor: its first line "
				      "is not '%s'",
				      name, first_line);
		else if (number > LINES_MAX || !whole)
			result = fail(failure, EXIT_FILE,
				      "'%s' has more than %d lines, or line %zu is too "
				      "long or contains a NUL",
				      name, LINES_MAX, number);
		else if ((ended && line[0]) ||
			 (!(ended |= strcmp(line, last_line) == 0) &&
			  !take_line(facts, line)))
			result = fail(failure, EXIT_FILE,
				      "'%s', line %zu, is not 'PATH = CONTENT', 'PATH -> "
				      "TARGET' or 'PATH ! REASON'",
				      name, number);
	}
	if (result == 0 && ferror(file))
		result = fail_file(failure, "read", name);
	if (result == 0 && !ended)
		result = fail(failure, EXIT_FILE,
			      "'%s' is incomplete: its last line is not '%s'", name,
			      last_line);
	free(line);
	return result;
}

int facts_load(struct facts *facts, const char *name, struct failure *failure)
{
	FILE *file = fopen(name, "re");
	int result;

	if (!file)
		return fail_file(failure, "read", name);
	result = read_lines(facts, file, name, failure);
	fclose(file);
	return result;
}
