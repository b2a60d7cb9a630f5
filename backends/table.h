/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_TABLE_H
#define PIER_BACKENDS_TABLE_H

#include <pier/backend.h>

enum {
	PIER_BACKEND_NAME_SIZE = 32, /* of pier_backend_info */
	PIER_BACKEND_PROBLEM_SIZE = 512,
};

/*
 * Copy the part of a table that both sides know; the rest of the copy is zero. Of a table
 * of another ABI only the first two members are read.
 *
 * ret_problem  why the table is refused
 *
 * Returns 0, or a positive errno: EPROTO another ABI; EINVAL too short, a required member
 * is missing, or the name is malformed.
 */
int pier_read_backend_table(const struct pier_backend *table,
			    struct pier_backend *ret_backend,
			    char ret_problem[PIER_BACKEND_PROBLEM_SIZE]);

/* Write why a table is refused. Returns `error`. */
int pier_refuse_backend(char ret_problem[PIER_BACKEND_PROBLEM_SIZE], int error,
			const char *format, ...) PIER_PRINTF(3, 4);

#endif
