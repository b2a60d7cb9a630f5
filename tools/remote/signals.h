/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_REMOTE_SIGNALS_H
#define PIER_TOOLS_REMOTE_SIGNALS_H

#include "failure.h"

/*
 * Block SIGINT, SIGTERM and SIGHUP and deliver them through a signalfd(2), which the
 * wait loops poll. Ignore SIGPIPE and SIGXFSZ, so that the write fails instead. Call it
 * before threads are started. Returns the descriptor, or -1.
 */
int open_signals(struct failure *failure);

/* Take one pending signal from the descriptor. Returns 0 if there is none, or -1. */
int check_signals(int fd, struct failure *failure);

#endif
