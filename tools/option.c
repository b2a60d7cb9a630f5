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

static int refuse_option(const struct option_table *table, const char *word,
			 const char *complaint)
{
	/* "-=" is a letter, "--name=value" a name. */
	print_error("%s: option '%.*s' %s; see '%s --help'", table->command,
		    (int)(2 + strcspn(word + 2, "=")), word, complaint, table->command);
	return -1;
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
	const char *name = words[0] + 2, *value = strchr(name, '=');
	size_t length = strcspn(name, "="), i = 0;
	const struct option_row *row;

	while (i < table->count &&
	       !(table->rows[i].name && strlen(table->rows[i].name) == length &&
		 strncmp(table->rows[i].name, name, length) == 0))
		i++;
	if (i == table->count)
		return refuse_option(table, words[0], "is unknown");
	row = &table->rows[i];
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
			return refuse_option(table, shown, "is unknown");
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
