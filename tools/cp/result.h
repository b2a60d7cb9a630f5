/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_RESULT_H
#define PIER_TOOLS_CP_RESULT_H

#include "cp.h"
#include "operand.h"

/* The outcome of a copy, for the user. */
struct cp_result {
	const struct failure *failure;
	const struct operand *source, *destinations;
	uint32_t destination_count;
	const struct failure *failures; /* of several destinations; otherwise NULL */
	const struct cp_settings *settings;
	struct cp_report source_report, destination_report;
	uint64_t bytes;
	uint64_t kept;		  /* of them, from an earlier copy */
	uint32_t files, left_out; /* in the list; of these, not copied */
	bool in_memory;		  /* the source: see source.h */
	struct cp_losses losses;  /* of metadata */
	double seconds;
	bool arrived; /* at one of the destinations or more, whatever was left out */
	bool verbose; /* also print why a side has no better path */
};

void print_result(const struct cp_result *result);
void print_result_json(const struct cp_result *result);

#endif
