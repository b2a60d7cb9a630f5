/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_RECEIVE_H
#define PIER_TOOLS_CP_RECEIVE_H

#include "transfer.h"

/* Receive the file and write the destination. Returns 0, or -1 with the failure set. */
int run_receiver(struct transfer *transfer);

#endif
