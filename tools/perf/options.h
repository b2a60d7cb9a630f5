/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PERF_OPTIONS_H
#define PIER_TOOLS_PERF_OPTIONS_H

#include "perf.h"

enum perf_format {
	PERF_TABLE,
	PERF_CSV,
	PERF_JSON,
};

struct perf_options {
	const char *test; /* "write_bw" */
	const char *host; /* of the server; NULL: this host */
	struct perf_settings settings;
	uint64_t sizes[PERF_SIZES_MAX];
	uint32_t size_count;
	const char *source_memory, *destination_memory, *device, *remote_device;
	const char *rsh, *remote_pier;
	uint32_t port; /* of ssh; 0: its default */
	/* Sides that the user starts: where this one waits, or the port of the other. */
	const char *listen;
	uint32_t connect; /* 0: through the remote shell */
	enum perf_format format;
	bool histogram, quiet, verbose;
};

/* Returns 0, or -1 and the exit status after printing an error or the help. */
int parse_perf_options(int argc, char **argv, struct perf_options *ret_options,
		       int *ret_status);

#endif
