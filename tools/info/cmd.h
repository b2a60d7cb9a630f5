/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_INFO_CMD_H
#define PIER_TOOLS_INFO_CMD_H

/* Run `pier info`; argv[0] is "info". Returns an exit status. */
int command_info(int argc, char **argv);

#endif
