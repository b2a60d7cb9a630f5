/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_PATH_H
#define PIER_TOOLS_CP_PATH_H

#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>

#include "failure.h"

/*
 * Opening the paths that a user or a client names. The kernel resolves every symbolic
 * link, so its protections apply: fs.protected_symlinks (proc_sys_fs(5)), and
 * RESOLVE_BENEATH (openat2(2)) for a restricted server.
 *
 * root  AT_FDCWD: paths are resolved as by open(2).
 *       A directory from open_root(): every path is resolved below it, even with
 *       leading slashes, and none can leave it.
 *
 * Returned descriptors are close-on-exec and owned by the caller. Functions without a
 * failure argument return -1 and set errno on errors.
 */

/* Fails also if the kernel cannot confine paths to a directory (before Linux 5.6). */
int open_root(const char *path, struct failure *failure);

/* path is shorter than PATH_MAX. EXDEV: it leads out of the root. */
int open_path(int root, const char *path, int flags);

/* close(2) unless it is -1; errno stays. */
void close_fd(int fd);

/* Open the file of an O_PATH descriptor, even if its path now names another file. */
int reopen_file(int fd, int flags);

/* chmod(2) of the file of a descriptor, which may be one with O_PATH. */
int change_mode(int fd, mode_t mode);

/*
 * Where a file is to be written: a directory, and a name in it that is never "." or "..".
 * Use the descriptor, not the path again: what the path names can change at any time.
 */
struct place {
	int directory;		 /* O_PATH; -1: not open */
	char name[NAME_MAX + 1]; /* "": the path names this directory itself */
	mode_t mode;		 /* of the file there; 0: there is none */
	bool link;		 /* the path ends in a symbolic link */
};

/*
 * Look up where the path leads. A symbolic link at its end is followed: the place is
 * that of the link's target, which must exist. Returns 0, or -1 with errno,
 * ret_place->link being set then, too.
 */
int open_place(int root, const char *path, struct place *ret_place);

/*
 * Go from the directory of a place to a name in it, as open_place() does.
 *
 * path  that of the name, for a symbolic link there
 */
int enter_place(int root, const char *path, const char *name, struct place *place);

/*
 * Refuse a path that leads through a link of /proc to an open file, such as /dev/stdout:
 * it names a descriptor of whichever process follows it, and a rename would replace the
 * file that the descriptor was opened with.
 *
 * only_own  refuse only links of the calling process
 */
int refuse_open_file(int root, const char *path, bool only_own, struct failure *failure);

/* Whether files can be created in the directory: 0, or -1 with errno. */
int may_write_to(int directory);

/* fsync(2): 0 also if the file system cannot do it, or -1 with errno. */
int sync_if_possible(int fd);

/*
 * fsync(2) of a directory, which may be O_PATH: 0, or -1 with errno. If the directory
 * cannot be read, sync the file system that `fd` is in.
 */
int sync_directory(int directory, int fd);

/* Whether another user may put files into the directory. */
bool is_shared_directory(int directory);

/* Whether another user may rename files of this user there: not if it is sticky. */
bool others_may_rename(int directory);

/* strerror(3), with an explanation for EXDEV. */
const char *path_error(int error);

bool same_inode(const struct stat *a, const struct stat *b);
/* Returns whether the name still names the file of the descriptor. */
bool is_named(int directory, const char *name, int fd);

/*
 * Add an inode to a set: 1, 0 if it is there already, or -1 if there is no memory. The
 * set is a tsearch(3) tree; NULL: it is empty. tdestroy(3) with free(3) frees it.
 */
int add_inode(void **set, const struct stat *stat);
bool has_inode(void *const *set, const struct stat *stat);

/* Whether a base name is "", "." or "..": it gives a copy no name. */
static inline bool has_no_name(const char *base)
{
	return !base[0] || strcmp(base, ".") == 0 || strcmp(base, "..") == 0;
}

/* The last component, without trailing slashes, truncated to fit. */
void base_name(const char *path, char ret_name[NAME_MAX + 1]);
/* The name of a tree, which is that of its first operand, or "tree". */
void tree_name(const char *operand, char ret_name[NAME_MAX + 1]);

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

/* fdopendir(3) of a new descriptor of the directory, which may be O_PATH. */
DIR *open_entries(int directory);

/* Called during long work on files. */
struct observer {
	/* Now and then. Returns 0; or -1 with a failure, which ends the work. */
	int (*alive)(void *context);
	/* Of each file that is left out. Any thread. */
	void (*report)(void *context, const char *path, const char *reason);
	void *context;
};

/*
 * Remove everything in a directory, as far as possible. Nobody else may be able to write
 * to it: whatever has a name there is removed. The observer may be NULL.
 */
void empty_directory(int directory, const struct observer *observer);

/* Remove a file, or a directory with everything in it: 0, or -1 with errno. */
int remove_below(int directory, const char *name, const struct observer *observer);

#endif
