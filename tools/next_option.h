/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_NEXT_OPTION_H
#define PIER_TOOLS_NEXT_OPTION_H

struct option;

/*
 * getopt_long(3), but a long option must be written in full: an abbreviation in a
 * script would become ambiguous when an option is added. argv[0] is the name of the
 * command. Returns -1 at the end, and '?' after printing one line about a bad option.
 */
int next_option(int argc, char **argv, const char *letters, const struct option *names);

#endif
