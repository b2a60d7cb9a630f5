/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PERF_RUN_H
#define PIER_TOOLS_PERF_RUN_H

#include "failure.h"
#include "side.h"
#include "worker.h"

/* Functions that return int return 0, or -1 with the failure set. */

/* Once, before the first step: what this side sends, and what the other side reads. */
int fill_sources(struct side *side, struct failure *failure);

/* The control connection of one side, while its threads measure. Zero it first. */
struct perf_session {
	struct perf_request request; /* its settings are those of the side */
	struct side side;
	struct control *control;
	uint64_t heard_ns;     /* when the other side gave its last sign of life */
	uint64_t keepalive_ns; /* when this side gave its own */
	struct frame frame;    /* that has arrived; valid if has_frame */
	bool has_frame;
};

/* The result of one size. */
struct perf_result {
	uint64_t size;
	uint64_t messages;
	double seconds;
	double bytes_per_second, messages_per_second; /* of both directions */
	double cpu_ns_per_gib, peer_cpu_ns_per_gib;   /* of all that was moved */
	struct histogram times; /* ns; one way, if the messages go to and fro */
};

/* Functions that return int return 0, or -1 with control->failure set. */

/* The client's part of one size. The caller frees nothing. */
int measure_size(struct perf_session *session, uint64_t size,
		 struct perf_result *ret_result);

/* The server's: all sizes, until the client ends. */
int serve_sizes(struct perf_session *session);

#endif
