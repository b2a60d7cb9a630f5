/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PERF_LATENCY_H
#define PIER_TOOLS_PERF_LATENCY_H

#include "worker.h"

/*
 * One message at a time, to and fro, on the worker's thread. Returns 0 or a negative
 * errno of the library.
 */
int run_latency(struct perf_worker *worker);

#endif
