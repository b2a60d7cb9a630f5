/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PERF_PRINT_H
#define PIER_TOOLS_PERF_PRINT_H

#include "options.h"
#include "run.h"

/* One run of the command, with its results so far. */
struct perf_run {
	const struct perf_options *options;
	const struct perf_settings *settings;
	struct perf_report here, there; /* the client and the server */
	uint32_t channels;		/* on all pairs of NICs */
	struct perf_result *results;	/* one for each size */
	uint32_t result_count;
};

/* The table and the CSV are printed line by line, while the command measures. */
void print_perf_start(const struct perf_run *run);
void print_perf_result(const struct perf_run *run, const struct perf_result *result);
/* The lines behind the table. */
void print_perf_end(const struct perf_run *run);

/* All of it, as one value. */
void print_perf_json(const struct perf_run *run);

#endif
