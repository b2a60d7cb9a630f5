/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_FAILURE_H
#define PIER_TOOLS_FAILURE_H

/* Exit statuses of the program, as documented in pier(1) and `pier help`. */
enum exit_status {
	EXIT_OK = 0,
	EXIT_FILE = 1,	   /* a file on either side could not be read or written */
	EXIT_USAGE = 2,	   /* unknown command, option, unit, or a missing argument */
	EXIT_DEVICE = 3,   /* a device or memory is unavailable or rejects the request */
	EXIT_PEER = 4,	   /* the other side, or the connection to it, failed */
	EXIT_VERIFY = 5,   /* the bytes that arrived differ from those that were sent */
	EXIT_WARNINGS = 6, /* pier doctor has warnings */
	EXIT_ERRORS = 7,   /* pier doctor has errors */
	EXIT_SIGNAL = 128, /* plus the number of the signal that ended either side */
};

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
