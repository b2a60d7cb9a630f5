/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_BELOW_H
#define PIER_TOOLS_CP_BELOW_H

/*
 * Paths below an open directory, in which no symbolic link is followed: another process
 * may replace a directory of a tree by a link at any time. The paths are relative.
 * Functions return -1 and set errno on errors; descriptors are close-on-exec.
 */

/*
 * openat(2), for a new file with the mode 0600. ELOOP or ENOTDIR: a part of the path is a
 * symbolic link. EINVAL: it is empty, "." or "..", which are no names.
 */
int open_below(int directory, const char *path, int flags);
/* The directory of the last component, which *ret_name points to: O_PATH. Errors as
 * above. */
int open_parent_below(int directory, const char *path, const char **ret_name);

/*
 * Remove everything in a directory, as far as possible. Nobody else may be able to write
 * to it: whatever has a name there is removed.
 *
 * alive  called for each file, and ends the removal by a negative value; NULL: none
 */
void empty_directory(int directory, int (*alive)(void *context), void *context);

#endif
