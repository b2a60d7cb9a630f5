/* SPDX-License-Identifier: BSD-3-Clause */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "below.h"
#include "path.h"

/* One component. */
static int open_component(int directory, const char *name, size_t length, int flags)
{
	char component[NAME_MAX + 1];

	if (length > NAME_MAX) {
		errno = ENAMETOOLONG;
		return -1;
	}
	memcpy(component, name, length);
	component[length] = '\0';
	if (has_no_name(component)) {
		errno = EINVAL;
		return -1;
	}
	return openat(directory, component, flags | O_NOFOLLOW | O_CLOEXEC, 0600);
}

/*
 * By component, so that it works with every kernel: openat2(2) has RESOLVE_NO_SYMLINKS,
 * but containers often refuse the call.
 */
int open_below(int directory, const char *path, int flags)
{
	int at = directory, next;

	for (;;) {
		size_t length = strcspn(path, "/");
		bool last = path[length] == '\0';

		next = open_component(at, path, length,
				      last ? flags : O_PATH | O_DIRECTORY);
		if (at != directory) {
			int error = errno;

			close(at);
			errno = error;
		}
		if (next < 0 || last)
			return next;
		at = next;
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
	if ((size_t)(slash - path) >= sizeof(parent)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	memcpy(parent, path, (size_t)(slash - path));
	parent[slash - path] = '\0';
	return open_below(directory, parent, O_PATH | O_DIRECTORY);
}

static bool is_real_directory(int directory, const char *name)
{
	struct stat stat;

	return fstatat(directory, name, &stat, AT_SYMLINK_NOFOLLOW) == 0 &&
	       S_ISDIR(stat.st_mode);
}

/*
 * Remove the files of a directory, and find one of its directories. Returns whether
 * there is one.
 */
static bool remove_files(int directory, int (*alive)(void *context), void *context,
			 char ret_name[NAME_MAX + 1])
{
	int copy = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *entries = copy < 0 ? NULL : fdopendir(copy);
	struct dirent *entry;
	bool found = false;

	if (!entries) {
		if (copy >= 0)
			close(copy);
		return false;
	}
	while ((entry = readdir(entries))) {
		if (alive && alive(context) < 0) {
			found = false;
			break;
		}
		if (has_no_name(entry->d_name) ||
		    unlinkat(directory, entry->d_name, 0) == 0 ||
		    unlinkat(directory, entry->d_name, AT_REMOVEDIR) == 0)
			continue;
		if (!found && is_real_directory(directory, entry->d_name)) {
			memcpy(ret_name, entry->d_name, strlen(entry->d_name) + 1);
			found = true;
		}
	}
	closedir(entries);
	return found;
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
static int lift_directory(int directory, const char *name, int top, uint32_t *number)
{
	int fd = open_to_empty(directory, name);
	char moved[32];

	if (fd >= 0)
		close(fd);
	do
		snprintf(moved, sizeof(moved), "%u", (*number)++);
	while (faccessat(top, moved, F_OK, AT_SYMLINK_NOFOLLOW) == 0);
	return renameat(directory, name, top, moved);
}

/*
 * Without recursion and with few descriptors: move each directory that is found to the
 * top, where its own directories are then found. The depth of a tree has no limit.
 */
void empty_directory(int directory, int (*alive)(void *context), void *context)
{
	char found[NAME_MAX + 1], deeper[NAME_MAX + 1];
	uint32_t number = 0;

	while (remove_files(directory, alive, context, found)) {
		int inner = open_to_empty(directory, found);

		if (inner < 0)
			break;
		while (remove_files(inner, alive, context, deeper))
			if (lift_directory(inner, deeper, directory, &number) < 0)
				break;
		close(inner);
		if (unlinkat(directory, found, AT_REMOVEDIR) < 0)
			break;
	}
}
