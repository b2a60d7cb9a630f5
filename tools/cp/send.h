/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_SEND_H
#define PIER_TOOLS_CP_SEND_H

#include "transfer.h"

/* Read the source and send it. Returns 0, or -1 with the failure set. */
int run_sender(struct transfer *transfer);

#endif
