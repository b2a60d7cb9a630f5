/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_STANDARD_H
#define PIER_TOOLS_CP_STANDARD_H

#include <stdbool.h>
#include <stddef.h>

#include "failure.h"

/*
 * Standard input or output of a client, which "-" names in place of a file. One worker
 * reads or writes it in order. stop_standard() ends its wait for a program at the other
 * end of a pipe, which may last for ever.
 */
struct standard {
	int fd;	     /* -1: not open */
	int stop;    /* eventfd(2) */
	size_t most; /* bytes that are written at once */
	bool ended;  /* all of the input has been read */
};

/* Functions that return int return 0, or -1 with the failure set. */

int open_standard_input(struct standard *standard, struct failure *failure);
/* Afterwards, what the program prints on standard output goes to standard error. */
int open_standard_output(struct standard *standard, struct failure *failure);
/* Read *length bytes. Sets it to fewer if the input ends before. */
int read_standard(struct standard *standard, void *ret_data, size_t *length,
		  struct failure *failure);
int write_standard(struct standard *standard, const void *data, size_t length,
		   struct failure *failure);
/* Any thread. NULL is allowed: a file is copied. */
void stop_standard(struct standard *standard);
void close_standard(struct standard *standard);

#endif
