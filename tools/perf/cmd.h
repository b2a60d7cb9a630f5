/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PERF_CMD_H
#define PIER_TOOLS_PERF_CMD_H

/* Run `pier perf`. Returns the exit status. */
int command_perf(int argc, char **argv);

#endif
