/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PERF_ENVIRONMENT_H
#define PIER_TOOLS_PERF_ENVIRONMENT_H

struct side;

/*
 * Complete the side's report with what a reader of the result wants to know in a year:
 * devices, drivers, firmware, kernel, processor. What cannot be read stays "".
 */
void read_environment(struct side *side);

#endif
