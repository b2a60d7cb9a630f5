/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PERF_ENVIRONMENT_H
#define PIER_TOOLS_PERF_ENVIRONMENT_H

struct side;

/*
 * Add the facts to the side's report that make the result comparable later: devices,
 * drivers, firmware, kernel, processor. A fact that cannot be read stays "".
 */
void read_environment(struct side *side);

#endif
