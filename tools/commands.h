/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_COMMANDS_H
#define PIER_TOOLS_COMMANDS_H

#include "option.h"

extern const struct option_table cp_option_table, doctor_option_table, info_option_table,
	perf_option_table, run_option_table;

/* Each runs one command, which is argv[0], and returns the exit status. */
int command_cp(int argc, char **argv);
int command_doctor(int argc, char **argv);
int command_info(int argc, char **argv);
int command_perf(int argc, char **argv);
/* Does not return if it runs a program. */
int command_run(int argc, char **argv);

#endif
