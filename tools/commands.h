/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_COMMANDS_H
#define PIER_TOOLS_COMMANDS_H

#include "option.h"

extern const struct option_table cp_option_table, doctor_option_table, info_option_table,
	perf_option_table, run_option_table;

/* For the help of the commands that have another side. */
#define EXIT_STATUSES                                                                 \
	"exit status:\n"                                                              \
	"  0 success, 1 a file could not be read or written, 2 usage error,\n"        \
	"  3 a device or memory is unavailable, 4 the other side or the connection\n" \
	"  failed, 5 verification failed, 128 + N signal N ended either side\n"

/* Each runs one command, which is argv[0], and returns the exit status. */
int command_cp(int argc, char **argv);
int command_doctor(int argc, char **argv);
int command_info(int argc, char **argv);
int command_perf(int argc, char **argv);
/* Does not return if it runs a program. */
int command_run(int argc, char **argv);

#endif
