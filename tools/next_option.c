/* SPDX-License-Identifier: BSD-3-Clause */
#include <getopt.h>
#include <string.h>

#include "failure.h"
#include "next_option.h"

static int refuse_option(const char *command, const char *word, const char *complaint)
{
	print_error("pier %s: option '%.*s' %s; see 'pier %s --help'", command,
		    (int)strcspn(word, "="), word, complaint, command);
	return '?';
}

static int explain_bad_option(char **argv, int option)
{
	/* getopt(3) is past a long option, but may still be inside a group of letters. */
	const char *word = argv[optind - 1];
	const char letter[3] = { '-', (char)optopt, '\0' };

	if (optopt && strncmp(word, "--", 2) != 0)
		word = letter;
	if (option == ':')
		return refuse_option(argv[0], word, "needs a value");
	if (optopt && strchr(word, '='))
		return refuse_option(argv[0], word, "takes no value");
	return refuse_option(argv[0], word, "is unknown");
}

int next_option(int argc, char **argv, const char *letters, const struct option *names)
{
	int index = -1, option;
	const char *word;

	opterr = 0;
	option = getopt_long(argc, argv, letters, names, &index);
	if (option == '?' || option == ':')
		return explain_bad_option(argv, option);
	if (option == -1 || index < 0)
		return option;
	word = argv[optind - 1];
	if (optarg && optarg == word)
		word = argv[optind - 2];
	if (strcspn(word + 2, "=") != strlen(names[index].name))
		return refuse_option(argv[0], word, "is unknown");
	return option;
}
