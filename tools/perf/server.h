/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PERF_SERVER_H
#define PIER_TOOLS_PERF_SERVER_H

/* Run `pier perf --server` for one client. Returns the exit status. */
int serve_perf(int argc, char **argv);

#endif
