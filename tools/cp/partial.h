/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_PARTIAL_H
#define PIER_TOOLS_CP_PARTIAL_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "failure.h"

/*
 * The unfinished copy that --continue leaves behind, and that the next one uses:
 * .NAME.pier-partial, in the directory where NAME will be. It is a file, or the stage of
 * a tree (stage.h). The process that writes it holds flock(2) on it.
 */

enum partial_kind {
	PARTIAL_FILE,
	PARTIAL_STAGE,
};

/*
 * Open or create it, and lock it. Waits up to half of timeout_ms for the process of a
 * copy that was just interrupted.
 *
 * name        NAME
 * path        of the destination, for error messages
 * ret_partial .NAME.pier-partial
 *
 * Returns a descriptor, of a file for reading and writing; or -1 with the failure set.
 */
int open_partial(int directory, const char *name, enum partial_kind kind,
		 uint32_t timeout_ms, const char *path, char ret_partial[NAME_MAX + 1],
		 struct failure *failure);

/*
 * Give the name to a new file with at most the first `size` bytes of the file, and the
 * mode 0600. In a shared directory the file may be one of this user that another user has
 * open, and can read or write whatever its mode is now: nothing is written to it.
 *
 * prefix  NAME for the temporary name of the new file: see temporary.h
 * alive   is called now and then; returns -1 to end the copy
 *
 * Returns its descriptor, locked, for reading and writing; or -1 with errno, or with the
 * failure of alive().
 */
int renew_file(int directory, const char *name, const char *prefix, int fd, uint64_t size,
	       int (*alive)(void *context), void *context);

/* The first byte at or after `offset` that may be data, or the size. */
uint64_t find_partial_data(int fd, uint64_t size, uint64_t offset);
/* Returns whether all of these bytes are there. */
bool read_partial(int fd, uint64_t offset, void *ret_data, size_t length);
/* Make these bytes of the file read as zeroes: 0, or -1 with errno. Any thread. */
int clear_partial(int fd, uint64_t offset, uint64_t length);

#endif
