/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_OPTION_H
#define PIER_TOOLS_OPTION_H

#include <stddef.h>

#include "json.h"

/*
 * The options of a command are a table: it parses them, prints the help, and is what the
 * completions of the shells are made from.
 */

struct option_table;
struct option_row;

/* An option of the command line, with its value or NULL. */
struct given_option {
	const struct option_table *table;
	const struct option_row *row;
	const char *value;
};

/*
 * Store the value in the member of the command's struct. Returns 0, 1 if the command is
 * done, or -1 after refuse_value() or print_error().
 */
typedef int take_option(const struct given_option *given, void *member);

struct option_row {
	char letter;	  /* 0: none */
	const char *name; /* without "--"; NULL: an empty line of the help */
	/* As the help calls the value, or all values: "on|off". NULL: takes none. */
	const char *argument;
	const char *help; /* NULL: the help leaves the option out */
	take_option *take;
	size_t offset;	    /* of the member */
	double least, most; /* the range, see below */
	const char *key;    /* for a take_option of the command */
};

/* Options of other programs that the command lacks, and the error's answer to them. */
struct option_habit {
	const char *names; /* with blanks between them: "-a --archive" */
	const char *answer;
};

struct option_table {
	const char *command; /* "pier cp" */
	const char *before;  /* in the help, lines before the options, to be folded */
	const struct option_row *rows;
	size_t count;
	const struct option_habit *habits;
	size_t habit_count;
	const char *after; /* likewise */
	const char *first; /* all values of the first operand: "a|b"; NULL: any */
	bool runs_program; /* the first operand and all that follows it are a program's */
};

/* bool: true or false. */
take_option option_on, option_off;
/* uint32_t: a whole number of the range. */
take_option option_number;
/* uint32_t: milliseconds; the value and the range are seconds. */
take_option option_seconds;
/* const char *: a text of so many bytes; any text if `most` is 0. */
take_option option_text;
/* char[most + 1]: a list for pier_channel_attr_parse(), to which later ones are added. */
take_option option_channel;
take_option option_help;

#define OPTION_HELP                                               \
	{                                                         \
		'h', "help", NULL, "print this help", option_help \
	}

/* Print one line: the rule completes "must be". Returns -1. */
int refuse_value(const struct given_option *given, const char *rule, ...)
	__attribute__((format(printf, 2, 3)));

/*
 * Parse the options, which may follow operands. As in getopt_long(3), a name may be
 * abbreviated while it is unambiguous, except those that the help leaves out. Returns
 * how many operands there are: argv[1] and those that follow, before a NULL. Returns -1
 * and the exit status of the command if it is done: after an error, or --help.
 */
int parse_options(const struct option_table *table, int argc, char **argv, void *options,
		  int *ret_status);

void print_options_help(const struct option_table *table);
/* A line of a help: the text starts at the column, and is folded there. */
void print_help_line(size_t column, const char *label, const char *text);
/* An array for tools/completion/generate.py. */
void print_options_json(struct json *json, const struct option_table *table);

/* Finds the name that a mistyped one resembles most. */
struct guess {
	const char *typed;
	size_t length;	  /* of typed */
	const char *name; /* NULL: none resembles it */
	size_t typos;	  /* that turn the name into the typed one */
};

/* Call it for each name that the user may have meant. */
void consider_name(struct guess *guess, const char *name);

/* With --verbose: print the library's messages, unless PIER_LOG directs them. */
void print_library_log(void);

#endif
