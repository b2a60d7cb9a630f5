/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_TEMPORARY_H
#define PIER_TOOLS_CP_TEMPORARY_H

/*
 * Names for a file that is not complete yet: .NAME.pier-tmp-X, in the directory
 * where NAME will be. X is 16 random hexadecimal digits, which nobody types, so
 * no file of a user has such a name by accident. Of NAME these are at most 40
 * bytes, cut between two characters of UTF-8. The process that writes the file holds
 * flock(2) on it for as long as it has such a name, so a file of that name without a lock
 * was left behind by a process that was killed.
 */

enum {
	TEMPORARY_MAX = 80
};

/* Create the file, locked. Returns its descriptor, or -1 with errno. */
int create_temporary(int directory, const char *name, char ret_temporary[TEMPORARY_MAX]);

/* Give a name to a file without one. Returns 0, or -1 with errno. */
int link_temporary(int fd, int directory, const char *name,
		   char ret_temporary[TEMPORARY_MAX]);

/* linkat(2) of a file without a name: EEXIST if the name is taken. */
int link_file(int fd, int directory, const char *name);

/*
 * Remove what killed copies to this name left. fd is our own new file in this
 * directory; files of other owners are not touched.
 */
void remove_leftovers(int directory, const char *name, int fd);

#endif
