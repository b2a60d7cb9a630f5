/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_SERVER_H
#define PIER_TOOLS_CP_SERVER_H

/*
 * The other side of a copy: `pier cp --server [OPTION...]`, which takes its
 * request from standard input. Returns an exit status.
 */
int serve_copy(int argc, char **argv);

#endif
