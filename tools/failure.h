/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_FAILURE_H
#define PIER_TOOLS_FAILURE_H

#include "exit.h"

/* Why a command fails: one line for the user, and the exit status. */
struct failure {
	int status; /* enum exit_status; 0: nothing failed */
	char text[1024];
};

/* Record a failure. Only the first one is kept, because it is the cause. Returns -1. */
int fail(struct failure *failure, int status, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Record the library's error message as the failure. Returns -1. */
int fail_pier(struct failure *failure, int status);

/*
 * Print one line on standard error through print_safely(), because the arguments may
 * contain file names and text from a peer. Report every error through it.
 */
void print_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

void print_failure(const struct failure *failure);

#endif
