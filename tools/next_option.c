/* SPDX-License-Identifier: BSD-3-Clause */
#include <getopt.h>
#include <stdbool.h>
#include <string.h>

#include "failure.h"
#include "next_option.h"

static int refuse_option(const char *command, const char *word, const char *complaint)
{
	/* "-=" is a letter, "--name=value" a name. */
	print_error("pier %s: option '%.*s' %s; see 'pier %s --help'", command,
		    (int)(2 + strcspn(word + 2, "=")), word, complaint, command);
	return '?';
}

/* Whether the word is "--name=value" of an option without a value, optopt. */
static bool has_excess_value(const char *word, const struct option *names)
{
	size_t length = strcspn(word, "=");

	if (!word[length])
		return false;
	for (; names->name; names++)
		if (names->val == optopt && names->has_arg == no_argument &&
		    strncmp(word + 2, names->name, length - 2) == 0)
			return true;
	return false;
}

/* "-r=1": the letter before the '=' that getopt(3) takes for a letter of its own. */
static char letter_with_value(int argc, char **argv)
{
	const char *word = argv[optind - 1];
	size_t length = strlen(word);

	/* getopt(3) stays at a group until its last letter. */
	if ((word[0] != '-' || word[length - 1] != '=') && optind < argc)
		word = argv[optind];
	return word[strcspn(word, "=") - 1];
}

static int explain_bad_option(int argc, char **argv, int option,
			      const struct option *names)
{
	/* getopt(3) is past a long option, but may still be inside a group of letters. */
	const char *word = argv[optind - 1];
	char letter[3] = { '-', (char)optopt, '\0' };
	bool is_long = strncmp(word, "--", 2) == 0;

	if (is_long && optopt && has_excess_value(word, names))
		return refuse_option(argv[0], word, "takes no value");
	if (is_long && (!optopt || option == ':'))
		return refuse_option(argv[0], word,
				     optopt ? "needs a value" : "is unknown");
	if (optopt == '=') {
		letter[1] = letter_with_value(argc, argv);
		if (letter[1] != '-')
			return refuse_option(argv[0], letter, "takes no value");
		letter[1] = '=';
	}
	return refuse_option(argv[0], letter,
			     option == ':' ? "needs a value" : "is unknown");
}

int next_option(int argc, char **argv, const char *letters, const struct option *names)
{
	int index = -1, option;
	const char *word;

	opterr = 0;
	option = getopt_long(argc, argv, letters, names, &index);
	if (option == '?' || option == ':')
		return explain_bad_option(argc, argv, option, names);
	if (option == -1 || index < 0)
		return option;
	word = argv[optind - 1];
	if (optarg && optarg == word)
		word = argv[optind - 2];
	if (strcspn(word + 2, "=") != strlen(names[index].name))
		return refuse_option(argv[0], word, "is unknown");
	return option;
}
