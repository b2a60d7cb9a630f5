/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PERF_PLOT_H
#define PIER_TOOLS_PERF_PLOT_H

#include "print.h"

/* Functions that return int return 0, or -1 with the failure set. */

/* Whether a file of this name can be drawn here: before anything is measured. */
int check_plot(const char *path, struct failure *failure);

/*
 * Draw bandwidth or latency over the size, and the earlier run beside it, with
 * gnuplot(1) or Python's matplotlib.
 */
int draw_plot(const struct perf_run *run, const char *path, struct failure *failure);

#endif
