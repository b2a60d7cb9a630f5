/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_SIGNALS_H
#define PIER_TOOLS_CP_SIGNALS_H

#include "failure.h"

/*
 * From now on SIGINT, SIGTERM and SIGHUP are read from a descriptor, in the
 * loop that also waits for everything else; writing to a closed pipe or beyond
 * a file size limit is an error and not a signal. Before threads are started.
 * Returns the descriptor, or -1.
 */
int open_signals(struct failure *failure);

#endif
