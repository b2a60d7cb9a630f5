/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PERF_BANDWIDTH_H
#define PIER_TOOLS_PERF_BANDWIDTH_H

#include "worker.h"

/* Both run on the worker's thread, and return a negative errno of the library or more. */

/* Keep as many messages in flight as possible, through all phases. */
int run_bandwidth(struct perf_worker *worker);
/* Take what the other side sends until it has stopped. */
int serve_until_end(struct perf_worker *worker);

#endif
