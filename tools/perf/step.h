/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PERF_STEP_H
#define PIER_TOOLS_PERF_STEP_H

#include "failure.h"
#include "side.h"

/* Functions that return int return 0, or -1 with the failure set. */

/* Once, before the first step: what this side sends, and what the other side reads. */
int fill_sources(struct side *side, struct failure *failure);

/* Clear what the other side will change, and prepare the requests of one size. */
int prepare_step(struct side *side, uint64_t size, struct failure *failure);

/*
 * Compare the bytes that have arrived with those that were sent, and the bytes behind
 * them with what was there.
 *
 * arrived  on each lane: the messages that changed this side's memory
 */
int verify_step(struct side *side, uint64_t size, const uint64_t *arrived,
		struct failure *failure);

#endif
