/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PROGRESS_H
#define PIER_TOOLS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

/* How far a copy is, on standard error. Zeroes show nothing. */
struct progress {
	bool shown;
	bool terminal; /* one line that is rewritten; or else a line each time */
	uint64_t total, started_ns, drawn_ns;
	bool drawn;
};

void begin_progress(struct progress *progress, uint64_t total);
/* Draws at most a few times a second. */
void show_progress(struct progress *progress, uint64_t bytes);
/* Take the line away. */
void end_progress(struct progress *progress);

#endif
