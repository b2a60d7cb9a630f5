/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PERF_WORKER_H
#define PIER_TOOLS_PERF_WORKER_H

#include <pthread.h>
#include <stdatomic.h>

#include "failure.h"
#include "side.h"

/*
 * The threads of one side that post and receive the messages of one step. The main
 * thread sets the phase, and meanwhile serves the control connection.
 */
enum perf_phase {
	PHASE_WARM_UP,
	PHASE_MEASURE,
	PHASE_DRAIN, /* post no more; wait for what was posted */
	PHASE_END,   /* all that will arrive is known: wait for it, then end */
	PHASE_ABORT, /* end at once */
};

struct perf_worker {
	pthread_t thread;
	struct perf_workers *workers;
	uint32_t first; /* lanes: this, and every count-th from there */
	bool started, complete;
	uint64_t start_ns, end_ns; /* of what was measured */
	uint64_t messages;
	struct histogram times;
	struct failure failure;
};

struct perf_workers {
	struct side *side;
	uint64_t size;
	bool initiates; /* this side posts messages of its own */
	bool serves;	/* it has receives */
	_Atomic uint32_t phase;
	_Atomic uint32_t measuring; /* workers whose warm-up is complete */
	_Atomic uint32_t complete;  /* workers whose own messages have been measured */
	_Atomic uint32_t failed;
	_Atomic uint32_t ended; /* threads */
	/* Before PHASE_END: the messages that will have arrived on each lane. */
	uint64_t incoming[PERF_LANES_MAX];
	int event; /* readable after one of these counts has changed */
	uint32_t count;
	struct perf_worker *all;
};

void set_phase(struct perf_workers *workers, enum perf_phase phase);
enum perf_phase get_phase(const struct perf_workers *workers);

/* The thread of a worker, which is the argument: it goes through all phases. */
void *run_worker(void *argument);

#endif
