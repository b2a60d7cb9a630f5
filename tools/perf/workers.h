/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PERF_WORKERS_H
#define PIER_TOOLS_PERF_WORKERS_H

#include "worker.h"

/* Zero the struct first. Functions that return int return 0, or -1 with the failure set.
 */

/* Start the threads of a step that prepare_step() has prepared. */
int start_perf_workers(struct perf_workers *workers, struct side *side, uint64_t size,
		       struct failure *failure);
/* Wait until they have ended; PHASE_END or PHASE_ABORT makes them. NULL-safe. */
int join_perf_workers(struct perf_workers *workers, struct failure *failure);
/* Frees what start_perf_workers() allocated. */
void free_perf_workers(struct perf_workers *workers);

#endif
