/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <pier/channel.h>
#include <pier/error.h>
#include <pier/log.h>

#include "failure.h"
#include "option.h"
#include "printable.h"
#include "units.h"

int refuse_value(const struct given_option *given, const char *rule, ...)
{
	char text[128];
	va_list arguments;

	va_start(arguments, rule);
	vsnprintf(text, sizeof(text), rule, arguments);
	va_end(arguments);
	print_error("%s: invalid value '%s' for --%s: must be %s", given->table->command,
		    given->value, given->row->name, text);
	return -1;
}

int option_on(const struct given_option *given, void *member)
{
	(void)given;
	*(bool *)member = true;
	return 0;
}

int option_off(const struct given_option *given, void *member)
{
	(void)given;
	*(bool *)member = false;
	return 0;
}

int option_number(const struct given_option *given, void *member)
{
	double least = given->row->least, most = given->row->most;
	uint64_t number;

	if (parse_number(given->value, &number) < 0 || (double)number < least ||
	    (double)number > most)
		return refuse_value(given, "a whole number from %.0f to %.0f", least,
				    most);
	*(uint32_t *)member = (uint32_t)number;
	return 0;
}

int option_seconds(const struct given_option *given, void *member)
{
	double least = given->row->least, most = given->row->most;
	char *end;
	double seconds = strtod(given->value, &end);

	if (end == given->value || *end || !(seconds >= least && seconds <= most))
		return refuse_value(given, "a number of seconds from %g to %.0f", least,
				    most);
	*(uint32_t *)member = (uint32_t)(seconds * 1000);
	return 0;
}

int option_text(const struct given_option *given, void *member)
{
	double length = (double)strlen(given->value), least = given->row->least,
	       most = given->row->most;

	if (most > 0 && (length < least || length > most))
		return refuse_value(given, "a name of %.0f to %.0f bytes", least, most);
	*(const char **)member = given->value;
	return 0;
}

int option_channel(const struct given_option *given, void *member)
{
	size_t size = (size_t)given->row->most + 1, used = strlen(member);
	struct pier_channel_attr attr;

	pier_channel_attr_init(&attr);
	if (used + strlen(given->value) + 2 > size)
		return refuse_value(given, "shorter: %zu bytes in all", size - 1);
	if (pier_channel_attr_parse(&attr, given->value) < 0) {
		print_error("%s: --%s: %s", given->table->command, given->row->name,
			    pier_error_message());
		return -1;
	}
	snprintf((char *)member + used, size - used, "%s%s", used ? "," : "",
		 given->value);
	return 0;
}

int option_help(const struct given_option *given, void *member)
{
	(void)member;
	print_options_help(given->table);
	return 1;
}

enum {
	NAME_MAX_GUESSED = 31
};

/* How many letters are missing, added, wrong, or swapped with the next one. */
static size_t count_typos(const char *typed, size_t length, const char *name)
{
	unsigned char typos[NAME_MAX_GUESSED + 1][NAME_MAX_GUESSED + 1];
	size_t name_length = strlen(name);

	for (size_t i = 0; i <= length; i++) {
		for (size_t j = 0; j <= name_length; j++) {
			unsigned int least = (unsigned int)(i > j ? i : j), other;

			if (i && j) {
				least = typos[i - 1][j - 1] +
					(typed[i - 1] != name[j - 1]);
				other = typos[i - 1][j] + 1u;
				least = other < least ? other : least;
				other = typos[i][j - 1] + 1u;
				least = other < least ? other : least;
			}
			if (i > 1 && j > 1 && typed[i - 1] == name[j - 2] &&
			    typed[i - 2] == name[j - 1]) {
				other = typos[i - 2][j - 2] + 1u;
				least = other < least ? other : least;
			}
			typos[i][j] = (unsigned char)least;
		}
	}
	return typos[length][name_length];
}

void consider_name(struct guess *guess, const char *name)
{
	size_t length = strlen(name), typos;
	size_t longer = length > guess->length ? length : guess->length;

	if (longer > NAME_MAX_GUESSED)
		return;
	typos = count_typos(guess->typed, guess->length, name);
	/* One letter of three; with more, most words resemble one of the names. */
	if (typos > longer / 3 || (guess->name && typos >= guess->typos))
		return;
	guess->name = name;
	guess->typos = typos;
}

/* "-=" is a letter, "--name=value" a name. */
static int option_length(const char *word)
{
	return (int)(2 + strcspn(word + 2, "="));
}

static int refuse_option(const struct option_table *table, const char *word,
			 const char *complaint)
{
	print_error("%s: option '%.*s' %s; see '%s --help'", table->command,
		    option_length(word), word, complaint, table->command);
	return -1;
}

static bool has_word(const char *words, const char *word, size_t length)
{
	for (; *words; words += strspn(words, " ")) {
		size_t one = strcspn(words, " ");

		if (one == length && strncmp(words, word, length) == 0)
			return true;
		words += one;
	}
	return false;
}

static const char *find_answer(const struct option_table *table, const char *word)
{
	size_t length = (size_t)option_length(word);

	for (size_t i = 0; i < table->habit_count; i++)
		if (has_word(table->habits[i].names, word, length))
			return table->habits[i].answer;
	return NULL;
}

static int refuse_unknown(const struct option_table *table, const char *word)
{
	const char *answer = find_answer(table, word);
	int length = option_length(word);
	struct guess guess = { .typed = word + 2, .length = (size_t)length - 2 };

	for (size_t i = 0; i < table->count && word[1] == '-' && length > 2; i++)
		if (table->rows[i].name && table->rows[i].help)
			consider_name(&guess, table->rows[i].name);
	if (answer)
		print_error("%s: option '%.*s' is unknown: %s", table->command, length,
			    word, answer);
	else if (guess.name)
		print_error("%s: option '%.*s' is unknown; did you mean --%s?",
			    table->command, length, word, guess.name);
	else
		return refuse_option(table, word, "is unknown");
	return -1;
}

static int refuse_ambiguous(const struct option_table *table, const char *word)
{
	size_t length = (size_t)option_length(word), used = 0;
	char names[1024];

	for (size_t i = 0; i < table->count; i++) {
		const struct option_row *row = &table->rows[i];

		if (row->name && row->help &&
		    strncmp(row->name, word + 2, length - 2) == 0 && used < sizeof(names))
			used += (size_t)snprintf(names + used, sizeof(names) - used,
						 "%s--%s", used ? ", " : "", row->name);
	}
	print_error("%s: option '%.*s' is ambiguous: %s", table->command, (int)length,
		    word, names);
	return -1;
}

/*
 * Find the option of this name, or the only one whose name begins with it. An answer to
 * a habit precedes an abbreviation. Returns NULL after an error.
 */
static const struct option_row *find_name(const struct option_table *table,
					  const char *word)
{
	const struct option_row *found = NULL, *row;
	size_t length = (size_t)option_length(word) - 2;
	bool ambiguous = false;

	for (row = table->rows; row < table->rows + table->count; row++) {
		if (!row->name || strncmp(row->name, word + 2, length) != 0)
			continue;
		if (!row->name[length])
			return row;
		if (!length || !row->help)
			continue;
		ambiguous = ambiguous || found;
		found = row;
	}
	if (!found || find_answer(table, word))
		refuse_unknown(table, word);
	else if (ambiguous)
		refuse_ambiguous(table, word);
	else
		return found;
	return NULL;
}

/* These three return how many words the option was, 0 if the command is done, or -1. */
static int take_value(const struct option_table *table, const struct option_row *row,
		      const char *value, void *options, int words)
{
	struct given_option given = { table, row, value };
	void *member = options ? (char *)options + row->offset : NULL;
	int result = row->take(&given, member);

	return result < 0 ? -1 : result > 0 ? 0 : words;
}

static int take_name(const struct option_table *table, char **words, void *options)
{
	const struct option_row *row = find_name(table, words[0]);
	const char *value = strchr(words[0], '=');

	if (!row)
		return -1;
	if (!row->argument && value)
		return refuse_option(table, words[0], "takes no value");
	if (!row->argument || value)
		return take_value(table, row, value ? value + 1 : NULL, options, 1);
	if (!words[1])
		return refuse_option(table, words[0], "needs a value");
	return take_value(table, row, words[1], options, 2);
}

static int take_letters(const struct option_table *table, char **words, void *options)
{
	int result = 1;

	for (const char *at = words[0] + 1; *at && result > 0; at++) {
		char shown[] = { '-', *at, '\0' };
		const struct option_row *row;
		size_t i = 0;

		while (i < table->count && table->rows[i].letter != *at)
			i++;
		if (i == table->count)
			return refuse_unknown(table, shown);
		row = &table->rows[i];
		if (row->argument && !at[1] && !words[1])
			return refuse_option(table, shown, "needs a value");
		if (row->argument)
			return take_value(table, row, at[1] ? at + 1 : words[1], options,
					  at[1] ? 1 : 2);
		if (at[1] == '=')
			return refuse_option(table, shown, "takes no value");
		result = take_value(table, row, NULL, options, 1);
	}
	return result;
}

int parse_options(const struct option_table *table, int argc, char **argv, void *options,
		  int *ret_status)
{
	int count = 0, i = 1, used;

	while (i < argc && strcmp(argv[i], "--") != 0) {
		if (argv[i][0] == '-' && argv[i][1]) {
			used = argv[i][1] == '-' ? take_name(table, argv + i, options)
						 : take_letters(table, argv + i, options);
			*ret_status = used < 0 ? EXIT_USAGE : EXIT_OK;
			if (used <= 0)
				return -1;
			i += used;
		} else if (table->runs_program) {
			break;
		} else {
			argv[++count] = argv[i++];
		}
	}
	if (i < argc && strcmp(argv[i], "--") == 0)
		i++;
	while (i < argc)
		argv[++count] = argv[i++];
	argv[count + 1] = NULL;
	return count;
}

/* "  -e, --rsh COMMAND"; returns its length, as snprintf(3). */
static size_t write_label(const struct option_row *row, char *ret_label, size_t size)
{
	char letter[] = "-x, ";

	letter[1] = row->letter;
	return (size_t)snprintf(
		ret_label, size, "  %s--%s%s%s", row->letter ? letter : "", row->name,
		row->argument ? " " : "", row->argument ? row->argument : "");
}

void print_help_line(size_t column, const char *label, const char *text)
{
	char margin[64];

	snprintf(margin, sizeof(margin), "%*s", (int)column, "");
	if (strlen(label) + 2 > column) {
		puts(label);
		label = "";
	}
	print_folded(stdout, margin, "%-*s%s", (int)column, label, text);
}

/* Print lines, each folded behind the blanks that it begins with. */
static void print_lines(const char *text)
{
	for (; text && *text; text += strcspn(text, "\n") + 1) {
		char margin[64];

		snprintf(margin, sizeof(margin), "%*s", (int)strspn(text, " "), "");
		print_folded(stdout, margin, "%.*s", (int)strcspn(text, "\n"), text);
	}
}

void print_options_help(const struct option_table *table)
{
	enum {
		COLUMN_MOST = 23
	};
	const struct option_row *row, *end = table->rows + table->count;
	size_t column = 0, length;
	char label[64];

	for (row = table->rows; row < end; row++) {
		length = row->help ? write_label(row, label, sizeof(label)) + 2 : 0;
		column = length > column ? length : column;
	}
	column = column > COLUMN_MOST ? COLUMN_MOST : column;
	print_lines(table->before);
	putchar('\n');
	for (row = table->rows; row < end; row++) {
		if (!row->name)
			putchar('\n');
		if (!row->help)
			continue;
		write_label(row, label, sizeof(label));
		print_help_line(column, label, row->help);
	}
	putchar('\n');
	print_lines(table->after);
}

void print_options_json(struct json *json, const struct option_table *table)
{
	json_open(json, "options", '[');
	for (size_t i = 0; table && i < table->count; i++) {
		const struct option_row *row = &table->rows[i];
		char letter[] = { row->letter, '\0' };

		if (!row->help)
			continue;
		json_open(json, NULL, '{');
		json_string(json, "letter", letter);
		json_string(json, "name", row->name);
		json_string(json, "argument", row->argument);
		json_string(json, "help", row->help);
		json_close(json, '}');
	}
	json_close(json, ']');
}

static void print_log(enum pier_log_level level, const char *message, void *argument)
{
	(void)level;
	(void)argument;
	print_error("pier: %s", message);
}

void print_library_log(void)
{
	if (!secure_getenv("PIER_LOG"))
		pier_log_set(PIER_LOG_INFO, print_log, NULL);
}
