/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_OPTIONS_H
#define PIER_TOOLS_CP_OPTIONS_H

#include <limits.h>

#include "message.h"

/* SRC or DST on the command line. */
struct operand {
	char host[256]; /* as given to the remote shell; "": this host */
	char path[PATH_MAX];
	bool standard; /* "-": standard input or output */
};

/* The command line of `pier cp`. */
struct cp_options {
	struct cp_settings settings;
	struct operand *operands;     /* all; owned */
	struct operand source;	      /* the first */
	struct operand *destinations; /* several only on other hosts */
	uint32_t destination_count;
	struct words sources, patterns;			/* all paths; of --exclude */
	const char *source_memory, *destination_memory; /* "": choose */
	const char *device, *remote_device;		/* "": choose; NULL: not given */
	const char *rsh, *remote_pier;
	uint32_t port; /* of ssh; 0: its default */
	bool standard; /* one of the operands is */
	bool recursive, progress, json, quiet, verbose;
};

/*
 * Returns 0, or -1 and the exit status after printing an error or the help. In both
 * cases free_cp_options() frees what the options have.
 */
int parse_cp_options(int argc, char **argv, struct cp_options *ret_options,
		     int *ret_status);
void free_cp_options(struct cp_options *options);

/* Print what is wrong with a command line. Returns -1. */
int refuse_usage(const char *complaint);

/*
 * Run the server side of a copy, `pier cp --server [OPTION...]`, which reads its request
 * from standard input. Returns an exit status.
 */
int serve_copy(int argc, char **argv);

#endif
