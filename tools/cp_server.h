/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_SERVER_H
#define PIER_TOOLS_CP_SERVER_H

/*
 * The other side of a copy, told what to do over standard input and output.
 * Returns an exit status.
 */
int serve_copy(void);

#endif
