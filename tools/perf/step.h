/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PERF_STEP_H
#define PIER_TOOLS_PERF_STEP_H

#include "side.h"
#include "worker.h"

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

/*
 * Keep as many messages in flight as possible, through all phases, on the worker's
 * thread. Returns a negative errno of the library on failure.
 */
int run_bandwidth(struct perf_worker *worker);

/* The same for the other side: take what it sends until it has stopped. */
int serve_until_end(struct perf_worker *worker);

/*
 * One message at a time, to and fro, on the worker's thread. Returns 0 or a negative
 * errno of the library.
 */
int run_latency(struct perf_worker *worker);

#endif
