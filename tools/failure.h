/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_FAILURE_H
#define PIER_TOOLS_FAILURE_H

#include "exit.h"

/* Why a command fails: one line for the user, and what to exit with. */
struct failure {
	int status; /* enum exit_status; 0: nothing failed */
	char text[1024];
};

/* Note a failure. The first one is the cause and is kept. Returns -1. */
int fail(struct failure *failure, int status, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* The same, of a failed call of the library. */
int fail_pier(struct failure *failure, int status);

/*
 * Print one line on standard error, with what print_safely() escapes escaped: the
 * arguments may hold file names and text from a peer. The only way to report an error.
 */
void print_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

void print_failure(const struct failure *failure);

#endif
