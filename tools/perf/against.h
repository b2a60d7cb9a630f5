/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PERF_AGAINST_H
#define PIER_TOOLS_PERF_AGAINST_H

#include <stdbool.h>

#include "failure.h"
#include "perf.h"

/* The figures of an earlier result that are compared. */
struct earlier_result {
	uint64_t size;
	double bytes_per_second;
	double median_us;
};

struct earlier_run {
	char test[PERF_NAME_MAX]; /* "": there is none */
	struct earlier_result results[PERF_SIZES_MAX];
	uint32_t count;
};

/* Read a result that `pier perf --json` wrote. Returns 0, or -1 with the failure set. */
int read_earlier_run(const char *path, struct earlier_run *ret_run,
		     struct failure *failure);

/* The result of a size, or NULL. */
const struct earlier_result *find_earlier_result(const struct earlier_run *run,
						 uint64_t size);

#endif
