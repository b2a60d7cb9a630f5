/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PERF_SIZES_H
#define PIER_TOOLS_PERF_SIZES_H

#include "options.h"

/* Both print an error and return -1 on a mistake of the user. */

/* Parse "64K", "4K,1M" or "4K-1M". */
int parse_sizes(const char *text, uint64_t *ret_sizes, uint32_t *ret_count);

/*
 * After all options: take the test and the host, choose what the user left open, and
 * refuse what does not fit together.
 */
int complete_perf_options(int argc, char **argv, struct perf_options *options);

#endif
