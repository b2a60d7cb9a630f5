/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PERF_SIDE_H
#define PIER_TOOLS_PERF_SIDE_H

#include <pier/pier.h>

#include "lane.h"
#include "message.h"

/* Functions that return int return 0, or -1 with control->failure set. */

/* Agree with the other side on the NICs, and connect all channels. */
int open_side(struct side *side, const struct perf_settings *settings,
	      const struct perf_place *place, bool local, struct control *control);
/* Close everything that is open. */
void close_side(struct side *side);

#endif
