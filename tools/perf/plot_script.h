/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PERF_PLOT_SCRIPT_H
#define PIER_TOOLS_PERF_PLOT_SCRIPT_H

#include <stdio.h>

#include "print.h"

/* Both write a program that draws the run as "svg" or "png" on standard output. */
void write_gnuplot_script(FILE *file, const struct perf_run *run, const char *format);
void write_matplotlib_script(FILE *file, const struct perf_run *run, const char *format);

#endif
