/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_SERVER_H
#define PIER_TOOLS_CP_SERVER_H

/*
 * Run the server side of a copy, `pier cp --server [OPTION...]`, which reads its request
 * from standard input. Returns an exit status.
 */
int serve_copy(int argc, char **argv);

#endif
