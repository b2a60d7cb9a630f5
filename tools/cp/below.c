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

struct emptying {
	int top;
	uint32_t number; /* of the next directory that is moved to the top */
	int (*alive)(void *context);
	void *context;
	bool ended; /* by alive() */
};

/*
 * Remove the files and empty directories of a directory, and call `reduce` for each other
 * directory. Returns whether anything was removed or reduced.
 */
static bool remove_entries(struct emptying *emptying, int directory,
			   bool (*reduce)(struct emptying *emptying, int directory,
					  const char *name))
{
	int copy = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *entries = copy < 0 ? NULL : fdopendir(copy);
	struct dirent *entry;
	bool changed = false;

	if (!entries) {
		if (copy >= 0)
			close(copy);
		return false;
	}
	while (!emptying->ended && (entry = readdir(entries))) {
		if (emptying->alive && emptying->alive(emptying->context) < 0)
			emptying->ended = true;
		else if (!has_no_name(entry->d_name) &&
			 (unlinkat(directory, entry->d_name, 0) == 0 ||
			  unlinkat(directory, entry->d_name, AT_REMOVEDIR) == 0 ||
			  (is_real_directory(directory, entry->d_name) &&
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

	if (fd >= 0)
		close(fd);
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

	if (fd >= 0)
		close(fd);
	return unlinkat(top, name, AT_REMOVEDIR) == 0 || changed;
}

/*
 * Without recursion and with few descriptors: the directories of each directory move to
 * the top, where the next pass finds them. The depth of a tree has no limit, and each
 * directory that can be removed is read once; the top, once for each level.
 */
void empty_directory(int directory, int (*alive)(void *context), void *context)
{
	struct emptying emptying = {
		.top = directory,
		.alive = alive,
		.context = context,
	};

	while (remove_entries(&emptying, directory, dissolve_directory))
		;
}
