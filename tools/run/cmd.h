/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_RUN_CMD_H
#define PIER_TOOLS_RUN_CMD_H

#include "option.h"

/* Run `pier run`; argv[0] is "run". Returns an exit status, or not at all. */
int command_run(int argc, char **argv);

extern const struct option_table run_option_table;

#endif
