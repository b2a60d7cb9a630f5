/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_COMMANDS_H
#define PIER_TOOLS_COMMANDS_H

struct option;

/* The subcommands; argv[0] is the command's name. They return an exit status. */
int command_cp(int argc, char **argv);
int command_info(int argc, char **argv);

/*
 * getopt_long(3), but a long option must be written in full, so that a script
 * does not change its meaning when an option is added. Tells the user, in one
 * line, what is wrong, and returns '?' then; -1 at the end.
 */
int next_option(int argc, char **argv, const char *letters, const struct option *names);

#endif
