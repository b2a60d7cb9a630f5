/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_UNFINISHED_H
#define PIER_TOOLS_CP_UNFINISHED_H

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "failure.h"
#include "path.h"

/*
 * The names of an incomplete copy in the directory where NAME will be. The process that
 * writes it holds flock(2) on it.
 *
 * .NAME.pier-tmp-X: X is 16 random hexadecimal digits, so a user's file does not have
 * such a name by accident. NAME is truncated to 40 bytes, at a UTF-8 character. A file
 * with such a name that is not locked was left behind by a killed process.
 *
 * .NAME.pier-partial: what --continue leaves behind, and the next copy uses.
 *
 * A file has such a name, or a stage: the directory in which a tree is written.
 */

enum {
	TEMPORARY_MAX = 80,
	/*
	 * Of a stage. No other directory has this mode, so one that another user gave
	 * such a name is not taken for it: see rename(2). In a set-gid directory it is
	 * set-gid, too.
	 */
	STAGE_MODE = 01700,
};

enum partial_kind {
	PARTIAL_FILE,
	PARTIAL_STAGE,
};

/* A commit, and the loss of the sender or a signal, race: the first one decides. */
enum copy_fate {
	COPY_UNDECIDED,
	COPY_NAMING, /* it gets its name now, unless that fails */
	COPY_ABANDONED,
};

/* Returns whether this decision is the first one. */
bool decide_fate(_Atomic enum copy_fate *fate, enum copy_fate decision);

/* Returns a descriptor or 0; or -1 with errno. EEXIST: the name is taken. */
typedef int temporary_maker(int directory, const char *name, int fd);

/* Create a file, or a stage, and lock it. `fd` is not used. */
temporary_maker make_file, make_stage;
/* linkat(2) for the file of `fd`, which has no name. */
temporary_maker link_file;
/* Give temporary names to the maker until one is free. Returns what the maker returns. */
int create_temporary(temporary_maker *make, int directory, const char *name, int fd,
		     char ret_temporary[TEMPORARY_MAX]);

/*
 * Remove the temporary files, and stages, that killed copies to this name left behind.
 * fd is this copy's new file or stage there; what belongs to others is not touched.
 */
void remove_leftovers(int directory, const char *name, int fd);

/*
 * Open or create what --continue keeps, and lock it. Waits up to half of timeout_ms for
 * the process of a copy that was just interrupted.
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
 * prefix  NAME for the temporary name of the new file
 *
 * Returns its descriptor, locked, for reading and writing; or -1 with errno, or with the
 * failure of observer->alive().
 */
int renew_file(int directory, const char *name, const char *prefix, int fd, uint64_t size,
	       const struct observer *observer);

#endif
