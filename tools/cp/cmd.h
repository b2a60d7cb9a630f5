/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_CMD_H
#define PIER_TOOLS_CP_CMD_H

/* Run `pier cp`; argv[0] is "cp". Returns an exit status. */
int command_cp(int argc, char **argv);

#endif
