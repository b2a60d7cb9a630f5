/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_PATH_H
#define PIER_TOOLS_CP_PATH_H

#include <limits.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "failure.h"

/*
 * How `pier cp` opens the paths that a user or a client names. The kernel follows
 * every symbolic link, so its rules hold: fs.protected_symlinks (proc_sys_fs(5)),
 * and for a restricted server RESOLVE_BENEATH (openat2(2)).
 *
 * root  AT_FDCWD: paths mean what they mean to open(2).
 *       A directory from open_root(): every path begins there, also one with
 *       leading slashes, and none leads out.
 *
 * Returned descriptors are close-on-exec and owned by the caller. Functions
 * without a failure argument return -1 and set errno.
 */

/* Returns the descriptor, or -1: also when the kernel cannot confine paths to it. */
int open_root(const char *path, struct failure *failure);

/* EXDEV: the path, which is shorter than PATH_MAX, leads out of the root. */
int open_path(int root, const char *path, int flags);

/* Open the file of an O_PATH descriptor; its path may be another file's by now. */
int reopen(int fd, int flags);

/*
 * Open the directory that the path's last component is in. Does not follow a
 * symbolic link at the last component.
 */
int open_parent(int root, const char *path, char ret_name[NAME_MAX + 1]);

/*
 * The same for the file itself, an O_PATH descriptor of which is given: finds the
 * one name that rename(2) must replace behind symbolic links. ESTALE: the file
 * was renamed or removed meanwhile.
 */
int open_parent_of(int root, int fd, char ret_name[NAME_MAX + 1]);

/* strerror(3), except that EXDEV is explained. */
const char *path_error(int error);

/* Whether two descriptions are of one inode. */
bool same_inode(const struct stat *a, const struct stat *b);

/* The last component, without trailing slashes; cut to fit. */
void base_name(const char *path, char ret_name[NAME_MAX + 1]);

#endif
