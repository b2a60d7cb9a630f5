/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PROGRESS_H
#define PIER_TOOLS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

/* The progress of a copy, on standard error. A zeroed struct shows nothing. */
struct progress {
	bool shown;
	bool terminal; /* rewrite one line; otherwise print a new line each time */
	uint64_t total, started_ns, drawn_ns;
	bool drawn;
};

void begin_progress(struct progress *progress, uint64_t total);
/* Update the display, at most a few times a second. */
void show_progress(struct progress *progress, uint64_t bytes);
/* Erase the line. */
void end_progress(struct progress *progress);

#endif
