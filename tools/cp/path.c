/* SPDX-License-Identifier: BSD-3-Clause */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <search.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "path.h"

enum {
	/* openat2(2): any rename on the machine can interrupt a lookup of ".." (EAGAIN).
	 */
	BENEATH_ATTEMPTS = 10000,
	/* As in the kernel (MAXSYMLINKS). */
	LINKS_MAX = 40,
	STALE_ATTEMPTS = 100,
};

void close_fd(int fd)
{
	int error = errno;

	if (fd >= 0)
		close(fd);
	errno = error;
}

DIR *open_entries(int directory)
{
	int fd = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *entries = fd < 0 ? NULL : fdopendir(fd);

	if (!entries)
		close_fd(fd);
	return entries;
}

static int open_beneath(int root, const char *path, int flags)
{
	const struct open_how how = {
		.flags = (uint64_t)flags,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS,
	};
	int attempt, fd = -1;

	path += strspn(path, "/");
	if (!*path)
		path = ".";
	for (attempt = 0; attempt < BENEATH_ATTEMPTS; attempt++) {
		fd = (int)syscall(SYS_openat2, root, path, &how, sizeof(how));
		if (fd >= 0 || errno != EAGAIN)
			break;
	}
	return fd;
}

int open_path(int root, const char *path, int flags)
{
	flags |= O_CLOEXEC;
	return root == AT_FDCWD ? open(path, flags) : open_beneath(root, path, flags);
}

/*
 * Whether a link is one of proc_pid_fd(5), proc_pid_map_files(5) or proc_pid_exe(5). The
 * cwd and root of a process are magic links as well, but lead to the same directory
 * whoever follows them.
 *
 * directory  where the link is; no symbolic link leads there
 */
static bool is_open_file(const char *directory, const char *name, char ret_link[PATH_MAX])
{
	char real[PATH_MAX];
	const char *last;
	struct statfs facts;

	if (!realpath(directory, real) || statfs(real, &facts) < 0 ||
	    facts.f_type != PROC_SUPER_MAGIC)
		return false;
	last = strrchr(real, '/') + 1;
	return (strcmp(last, "fd") == 0 || strcmp(last, "map_files") == 0 ||
		strcmp(name, "exe") == 0) &&
	       snprintf(ret_link, PATH_MAX, "%s/%s", real, name) < PATH_MAX;
}

/* Follow the path as the kernel does, a component at a time. */
static bool leads_through_open_file(const char *operand, char ret_link[PATH_MAX])
{
	char path[PATH_MAX], target[PATH_MAX], expanded[PATH_MAX];
	char directory[PATH_MAX], name[NAME_MAX + 1];
	size_t at = 0, end;
	int links = 0;

	snprintf(path, sizeof(path), "%s", operand);
	for (;;) {
		ssize_t length;
		char after;

		at += strspn(path + at, "/");
		end = at + strcspn(path + at, "/");
		if (end == at || end - at > NAME_MAX)
			return false;
		snprintf(name, sizeof(name), "%.*s", (int)(end - at), path + at);
		snprintf(directory, sizeof(directory), "%.*s", at ? (int)at : 1,
			 at ? path : ".");
		after = path[end];
		path[end] = '\0';
		length = readlink(path, target, sizeof(target) - 1);
		path[end] = after;
		if (length < 0 && errno != EINVAL)
			return false;
		if (length >= 0 && is_open_file(directory, name, ret_link))
			return true;
		if (length < 0) {
			at = end;
			continue;
		}
		/* The target takes the place of the link. */
		target[length] = '\0';
		length = snprintf(expanded, sizeof(expanded), "%.*s%s%s",
				  target[0] == '/' ? 0 : (int)at, path, target,
				  path + end);
		if (++links > LINKS_MAX || length >= PATH_MAX)
			return false;
		strcpy(path, expanded);
		at = 0;
	}
}

int refuse_open_file(int root, const char *path, bool only_own, struct failure *failure)
{
	char link[PATH_MAX], own[PATH_MAX];
	size_t length;

	/* The kernel refuses such links below a root. */
	if (root != AT_FDCWD || !leads_through_open_file(path, link))
		return 0;
	if (only_own) {
		if (!realpath("/proc/self", own))
			return 0;
		length = strlen(own);
		if (strncmp(link, own, length) != 0 || link[length] != '/')
			return 0;
	}
	return fail(failure, EXIT_FILE,
		    "%s leads to an open file of a process (%s): name the file itself",
		    path, link);
}

int open_root(const char *path, struct failure *failure)
{
	int root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	int probe = root < 0 ? -1 : open_beneath(root, ".", O_PATH | O_CLOEXEC);

	if (probe >= 0) {
		close(probe);
		return root;
	}
	fail(failure, EXIT_FILE, "cannot serve %s: %s", path,
	     errno == ENOSYS ? "--under needs openat2(2) (Linux 5.6 or later)"
			     : strerror(errno));
	close_fd(root);
	return -1;
}

static void name_descriptor(int fd, char *ret_path, size_t size)
{
	snprintf(ret_path, size, "/proc/self/fd/%d", fd);
}

int reopen_file(int fd, int flags)
{
	char self[32];

	name_descriptor(fd, self, sizeof(self));
	return open(self, flags | O_CLOEXEC);
}

int change_mode(int fd, mode_t mode)
{
	char self[32];

	name_descriptor(fd, self, sizeof(self));
	return chmod(self, mode);
}

bool same_inode(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

bool is_named(int directory, const char *name, int fd)
{
	struct stat named, opened;

	return fstatat(directory, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
	       fstat(fd, &opened) == 0 && same_inode(&named, &opened);
}

/* Where the last component begins, and its length, without trailing slashes. */
static size_t find_base_name(const char *path, size_t *ret_length)
{
	size_t end = strlen(path), start;

	while (end > 0 && path[end - 1] == '/')
		end--;
	for (start = end; start > 0 && path[start - 1] != '/';)
		start--;
	*ret_length = end - start;
	return start;
}

void tree_name(const char *operand, char ret_name[NAME_MAX + 1])
{
	base_name(operand, ret_name);
	if (has_no_name(ret_name))
		strcpy(ret_name, "tree");
}

/* Open the directory with the last component of the path, and write its name. */
static int open_parent(int root, const char *path, char ret_name[NAME_MAX + 1])
{
	size_t length, start = find_base_name(path, &length);
	char directory[PATH_MAX] = ".";

	if (start >= sizeof(directory) || length > NAME_MAX) {
		errno = ENAMETOOLONG;
		return -1;
	}
	base_name(path, ret_name);
	/* "a/.." that does not exist now may exist later, and lead out of the root. */
	if (has_no_name(ret_name)) {
		errno = ENOENT;
		return -1;
	}
	if (start)
		snprintf(directory, sizeof(directory), "%.*s", (int)start, path);
	return open_path(root, directory, O_PATH | O_DIRECTORY);
}

/* The kernel's path of the open file: proc_pid_fd(5). */
static int read_path(int fd, char ret_path[PATH_MAX])
{
	char self[32];
	ssize_t length;

	name_descriptor(fd, self, sizeof(self));
	length = readlink(self, ret_path, PATH_MAX);
	if (length == PATH_MAX)
		errno = ENAMETOOLONG;
	if (length < 0 || length == PATH_MAX)
		return -1;
	ret_path[length] = '\0';
	return 0;
}

/* Make the path relative to the root. Fails if it is not below the root. */
static int strip_root(int root, char path[PATH_MAX])
{
	char own[PATH_MAX];
	size_t length;

	if (root == AT_FDCWD)
		return 0;
	if (read_path(root, own) < 0)
		return -1;
	length = strlen(own);
	if (own[length - 1] == '/')
		length--;
	if (strncmp(path, own, length) != 0 || path[length] != '/') {
		errno = ESTALE;
		return -1;
	}
	memmove(path, path + length, strlen(path + length) + 1);
	return 0;
}

/*
 * Open the directory that contains the file of an O_PATH descriptor, and write the
 * file's name there, which rename(2) must replace when symbolic links lead to the file.
 * ESTALE: the file was renamed or removed in the meantime.
 */
static int open_parent_of(int root, int fd, char ret_name[NAME_MAX + 1])
{
	char path[PATH_MAX];
	int directory;

	if (read_path(fd, path) < 0 || strip_root(root, path) < 0)
		return -1;
	directory = open_parent(root, path, ret_name);
	if (directory < 0 || is_named(directory, ret_name, fd))
		return directory;
	close(directory);
	errno = ESTALE;
	return -1;
}

static void move_place(struct place *place, int directory, const char *name)
{
	close(place->directory);
	place->directory = directory;
	strcpy(place->name, name);
}

/* The name was that of a directory a moment ago. O_DIRECTORY mounts it if need be. */
static int enter_directory(struct place *place)
{
	int found = openat(place->directory, place->name,
			   O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (found >= 0) {
		move_place(place, found, "");
		return 0;
	}
	if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP)
		errno = ESTALE;
	return -1;
}

/* Only a path is resolved below the root, so the link's is looked up as a whole. */
static int follow_link(int root, const char *path, struct place *place)
{
	int target = open_path(root, path, O_PATH | O_DIRECTORY), directory;
	char name[NAME_MAX + 1];
	struct stat stat;

	place->link = true;
	if (target >= 0) {
		move_place(place, target, "");
		return 0;
	}
	if (errno != ENOTDIR)
		return -1;
	target = open_path(root, path, O_PATH);
	if (target < 0)
		return -1;
	directory = fstat(target, &stat) < 0 ? -1 : open_parent_of(root, target, name);
	close_fd(target);
	if (directory < 0)
		return -1;
	move_place(place, directory, name);
	place->mode = stat.st_mode;
	return 0;
}

/* Returns 0, or -1 with errno. ESTALE: what was found is no longer there. */
static int look_at_place(int root, const char *path, struct place *place)
{
	struct stat stat;

	place->link = false;
	place->mode = 0;
	if (fstatat(place->directory, place->name, &stat, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : -1;
	if (S_ISDIR(stat.st_mode))
		return enter_directory(place);
	if (S_ISLNK(stat.st_mode))
		return follow_link(root, path, place);
	place->mode = stat.st_mode;
	return 0;
}

int enter_place(int root, const char *path, const char *name, struct place *place)
{
	int result = -1;

	snprintf(place->name, sizeof(place->name), "%s", name);
	errno = ESTALE;
	/* Another copy may replace the file during the lookup. */
	for (int i = 0; i < STALE_ATTEMPTS && result < 0 && errno == ESTALE; i++)
		result = look_at_place(root, path, place);
	if (result < 0) {
		close_fd(place->directory);
		place->directory = -1;
	}
	return result;
}

int open_place(int root, const char *path, struct place *ret_place)
{
	char name[NAME_MAX + 1];

	memset(ret_place, 0, sizeof(*ret_place));
	base_name(path, name);
	if (has_no_name(name)) {
		ret_place->directory = open_path(root, path, O_PATH | O_DIRECTORY);
		return ret_place->directory < 0 ? -1 : 0;
	}
	ret_place->directory = open_parent(root, path, name);
	return ret_place->directory < 0 ? -1 : enter_place(root, path, name, ret_place);
}

/* Some containers refuse faccessat2(2). */
int may_write_to(int directory)
{
	return faccessat(directory, ".", W_OK | X_OK, AT_EACCESS) < 0 &&
			       (errno == EACCES || errno == EROFS)
		       ? -1
		       : 0;
}

/* EINVAL: the file system cannot sync directories. */
int sync_if_possible(int fd)
{
	return fsync(fd) == 0 || errno == EINVAL ? 0 : -1;
}

int sync_directory(int directory, int fd)
{
	int opened = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int result;

	if (opened < 0)
		return errno == EACCES ? syncfs(fd) : -1;
	result = sync_if_possible(opened);
	close_fd(opened);
	return result;
}

static bool is_of_another_user(const struct stat *stat)
{
	return stat->st_uid != geteuid() && stat->st_uid != 0;
}

bool is_shared_directory(int directory)
{
	struct stat stat;

	/* The mask of an ACL is in the bits of the group: acl(5). */
	return fstat(directory, &stat) < 0 || (stat.st_mode & (S_IWGRP | S_IWOTH)) ||
	       is_of_another_user(&stat);
}

bool others_may_rename(int directory)
{
	struct stat stat;

	return is_shared_directory(directory) &&
	       (fstat(directory, &stat) < 0 || !(stat.st_mode & S_ISVTX) ||
		is_of_another_user(&stat));
}

const char *path_error(int error)
{
	return error == EXDEV ? "it leads out of the directory that is served"
			      : strerror(error);
}

struct inode {
	uint64_t device, number;
};

static int compare_inodes(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(struct inode));
}

int add_inode(void **set, const struct stat *stat)
{
	struct inode *inode = malloc(sizeof(*inode)), **found;

	if (!inode)
		return -1;
	*inode = (struct inode){ stat->st_dev, stat->st_ino };
	found = tsearch(inode, set, compare_inodes);
	if (found && *found == inode)
		return 1;
	free(inode);
	return found ? 0 : -1;
}

bool has_inode(void *const *set, const struct stat *stat)
{
	const struct inode key = { stat->st_dev, stat->st_ino };

	return tfind(&key, set, compare_inodes);
}

void base_name(const char *path, char ret_name[NAME_MAX + 1])
{
	size_t length, start = find_base_name(path, &length);

	snprintf(ret_name, NAME_MAX + 1, "%.*s", (int)length, path + start);
}

/*
 * By component, so that it works with every kernel: openat2(2) has RESOLVE_NO_SYMLINKS,
 * but containers often refuse the call.
 */
int open_below(int directory, const char *path, int flags)
{
	char component[NAME_MAX + 1];
	int at = directory, next = -1;

	for (;;) {
		size_t length = strcspn(path, "/");
		bool last = path[length] == '\0';

		snprintf(component, sizeof(component), "%.*s", (int)length, path);
		if (length > NAME_MAX)
			errno = ENAMETOOLONG;
		else if (has_no_name(component))
			errno = EINVAL;
		else
			next = openat(at, component,
				      (last ? flags : O_PATH | O_DIRECTORY) | O_NOFOLLOW |
					      O_CLOEXEC,
				      0600);
		if (at != directory)
			close_fd(at);
		if (next < 0 || last)
			return next;
		at = next;
		next = -1;
		path += length + 1;
	}
}

int open_parent_below(int directory, const char *path, const char **ret_name)
{
	const char *slash = strrchr(path, '/');
	char parent[PATH_MAX];

	*ret_name = slash ? slash + 1 : path;
	if (has_no_name(*ret_name)) {
		errno = EINVAL;
		return -1;
	}
	if (!slash)
		return openat(directory, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (snprintf(parent, sizeof(parent), "%.*s", (int)(slash - path), path) >=
	    PATH_MAX) {
		errno = ENAMETOOLONG;
		return -1;
	}
	return open_below(directory, parent, O_PATH | O_DIRECTORY);
}

struct emptying {
	int top;
	uint32_t number; /* of the next directory that is moved to the top */
	const struct observer *observer; /* NULL: none */
	bool ended;			 /* by the observer */
};

/*
 * Remove the files and empty directories of a directory, and call `reduce` for each other
 * directory. Returns whether anything was removed or reduced.
 */
static bool remove_entries(struct emptying *emptying, int directory,
			   bool (*reduce)(struct emptying *emptying, int directory,
					  const char *name))
{
	DIR *entries = open_entries(directory);
	struct dirent *entry;
	struct stat stat;
	bool changed = false;

	if (!entries)
		return false;
	while (!emptying->ended && (entry = readdir(entries))) {
		if (emptying->observer &&
		    emptying->observer->alive(emptying->observer->context) < 0)
			emptying->ended = true;
		else if (!has_no_name(entry->d_name) &&
			 (unlinkat(directory, entry->d_name, 0) == 0 ||
			  unlinkat(directory, entry->d_name, AT_REMOVEDIR) == 0 ||
			  (fstatat(directory, entry->d_name, &stat,
				   AT_SYMLINK_NOFOLLOW) == 0 &&
			   S_ISDIR(stat.st_mode) &&
			   reduce(emptying, directory, entry->d_name))))
			changed = true;
	}
	closedir(entries);
	return changed;
}

/* A directory of a copy may already have its own mode, which can forbid the removal. */
static int open_to_empty(int directory, const char *name)
{
	int found = openat(directory, name,
			   O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	int fd;

	if (found < 0)
		return -1;
	change_mode(found, 0700);
	fd = openat(found, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	close(found);
	return fd;
}

/* Move a directory to the one at the top. It takes the right to write to it, too. */
static bool lift_directory(struct emptying *emptying, int directory, const char *name)
{
	int fd = open_to_empty(directory, name);
	char moved[32];

	close_fd(fd);
	do
		snprintf(moved, sizeof(moved), "%u", emptying->number++);
	while (faccessat(emptying->top, moved, F_OK, AT_SYMLINK_NOFOLLOW) == 0);
	return renameat(directory, name, emptying->top, moved) == 0;
}

/* Remove a directory of the top, after its own directories have been moved there. */
static bool dissolve_directory(struct emptying *emptying, int top, const char *name)
{
	int fd = open_to_empty(top, name);
	bool changed = fd >= 0 && remove_entries(emptying, fd, lift_directory);

	close_fd(fd);
	return unlinkat(top, name, AT_REMOVEDIR) == 0 || changed;
}

/*
 * Without recursion and with few descriptors: the directories of each directory move to
 * the top, where the next pass finds them. The depth of a tree has no limit, and each
 * directory that can be removed is read once; the top, once for each level.
 */
void empty_directory(int directory, const struct observer *observer)
{
	struct emptying emptying = { .top = directory, .observer = observer };

	while (remove_entries(&emptying, directory, dissolve_directory))
		;
}

int remove_below(int directory, const char *name, const struct observer *observer)
{
	int fd;

	if (unlinkat(directory, name, 0) == 0)
		return 0;
	if (errno != EISDIR)
		return -1;
	fd = open_to_empty(directory, name);
	if (fd >= 0)
		empty_directory(fd, observer);
	close_fd(fd);
	return unlinkat(directory, name, AT_REMOVEDIR);
}
