/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_TEMPORARY_H
#define PIER_TOOLS_CP_TEMPORARY_H

#include <stdbool.h>
#include <sys/stat.h>

/*
 * Temporary names for an incomplete file: .NAME.pier-tmp-X, in the directory where NAME
 * will be. X is 16 random hexadecimal digits, so a user's file does not have such a name
 * by accident. NAME is truncated to 40 bytes, at a UTF-8 character. The process that
 * writes the file holds flock(2) on it while it has a temporary name, so an unlocked
 * file with such a name was left behind by a killed process.
 */

enum {
	TEMPORARY_MAX = 80,
	/*
	 * Of the directory of an incomplete tree. No other has this mode, so one that
	 * another user gave such a name is not taken for it: see rename(2). In a set-gid
	 * directory it is set-gid, too.
	 */
	STAGE_MODE = 01700,
};

/* Whether it is the directory of an incomplete tree of this owner. */
bool is_stage(const struct stat *stat, uid_t owner);

/* Choose a temporary name. Returns 0, or -1 with errno. */
int choose_temporary(const char *name, char ret_temporary[TEMPORARY_MAX]);

/* Create the file and lock it. Returns its descriptor, or -1 with errno. */
int create_temporary(int directory, const char *name, char ret_temporary[TEMPORARY_MAX]);

/* Give a temporary name to a file without a name. Returns 0, or -1 with errno. */
int link_temporary(int fd, int directory, const char *name,
		   char ret_temporary[TEMPORARY_MAX]);

/* Returns whether the name still names that file. */
bool is_named(int directory, const char *name, int fd);

/* linkat(2) for a file without a name. EEXIST: the name is taken. */
int link_file(int fd, int directory, const char *name);

/*
 * Remove the temporary files, and directories of trees, that killed copies to this name
 * left behind. fd is this copy's new file or directory there; what belongs to others is
 * not touched.
 */
void remove_leftovers(int directory, const char *name, int fd);

#endif
