/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PROGRESS_H
#define PIER_TOOLS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

/*
 * The progress of a copy: a bar or lines on standard error, or lines of JSON on
 * standard output. A reader that does not keep up misses updates; it does not hold up
 * the copy. A zeroed struct shows nothing.
 */
struct progress {
	bool shown;
	bool json;
	bool terminal; /* rewrite one line; otherwise print a new line each time */
	bool drawn;
	uint64_t total; /* above INT64_MAX: unknown */
	uint64_t bytes;
	uint64_t started_ns, drawn_ns;
	uint64_t counted_ns; /* when `bytes` was set */
	double rate;	     /* bytes per second, mostly of the last seconds */
};

/* Writing to the descriptor would block: a pipe is full, or Ctrl-S has stopped the
 * terminal. */
bool reader_is_behind(int fd);

void begin_progress(struct progress *progress, uint64_t total);
/* So many bytes need no transfer. The rate does not count them, nor the time up to now.
 */
void skip_progress(struct progress *progress, uint64_t bytes);
/* Update the display, at most a few times a second. */
void show_progress(struct progress *progress, uint64_t bytes);
/* Erase the line. */
void end_progress(struct progress *progress);

#endif
