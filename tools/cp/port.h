/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_PORT_H
#define PIER_TOOLS_CP_PORT_H

#include "transfer.h"

/* Whether a port that this side uses is down. */
bool is_port_down(const struct transfer *transfer);

/*
 * The copy has failed. If the network may be the reason and a port of this side is down,
 * the failure begins with that, and is reported to the other side, also if it came from
 * there.
 */
void name_down_port(struct transfer *transfer);

#endif
