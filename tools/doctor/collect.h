/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_DOCTOR_COLLECT_H
#define PIER_TOOLS_DOCTOR_COLLECT_H

struct facts;

/*
 * Facts that no file has: limits of this process, what it may open, and the answers of
 * the library. Small transfers are made on the way, of memory that is allocated for them.
 *
 * device  the only one to look at, or NULL: all NICs, or soft0 without one
 * memory  the only kind to look at beside "host", or NULL: all kinds that work here
 */
void collect_facts(struct facts *facts, const char *device, const char *memory);

#endif
