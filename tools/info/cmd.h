/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_INFO_CMD_H
#define PIER_TOOLS_INFO_CMD_H

#include "option.h"

/* Run `pier info`; argv[0] is "info". Returns an exit status. */
int command_info(int argc, char **argv);

extern const struct option_table info_option_table;

#endif
