/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_SERVER_H
#define PIER_TOOLS_CP_SERVER_H

#include <stdbool.h>

/*
 * The other side of a copy, told what to do over standard input and output.
 * A local one was started by a client on this host, and does not use the network.
 * Returns an exit status.
 */
int serve_copy(bool local);

#endif
