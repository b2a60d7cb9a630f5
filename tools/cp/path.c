/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "path.h"

enum {
	/* openat2(2): any rename on the machine can interrupt a lookup of ".." (EAGAIN).
	 */
	BENEATH_ATTEMPTS = 10000
};

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

int open_root(const char *path, struct failure *failure)
{
	int root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC), probe;

	if (root < 0)
		return fail(failure, EXIT_FILE, "cannot serve %s: %s", path,
			    strerror(errno));
	probe = open_beneath(root, ".", O_PATH | O_CLOEXEC);
	if (probe >= 0) {
		close(probe);
		return root;
	}
	fail(failure, EXIT_FILE, "cannot serve %s: %s", path,
	     errno == ENOSYS ? "--under needs openat2(2) (Linux 5.6 or later)"
			     : strerror(errno));
	close(root);
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

int open_parent(int root, const char *path, char ret_name[NAME_MAX + 1])
{
	const char *slash = strrchr(path, '/');
	const char *name = slash ? slash + 1 : path;
	size_t length = (size_t)(name - path);
	char directory[PATH_MAX] = ".";

	if (length >= sizeof(directory) || strlen(name) > NAME_MAX) {
		errno = ENAMETOOLONG;
		return -1;
	}
	if (slash)
		snprintf(directory, sizeof(directory), "%.*s", (int)length, path);
	strcpy(ret_name, name);
	return open_path(root, directory, O_RDONLY | O_DIRECTORY);
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

int open_parent_of(int root, int fd, char ret_name[NAME_MAX + 1])
{
	struct stat wanted, found;
	char path[PATH_MAX];
	int directory;

	if (fstat(fd, &wanted) < 0 || read_path(fd, path) < 0 ||
	    strip_root(root, path) < 0)
		return -1;
	directory = open_parent(root, path, ret_name);
	if (directory >= 0 &&
	    fstatat(directory, ret_name, &found, AT_SYMLINK_NOFOLLOW) == 0 &&
	    same_inode(&wanted, &found))
		return directory;
	if (directory >= 0) {
		close(directory);
		errno = ESTALE;
	}
	return -1;
}

const char *path_error(int error)
{
	return error == EXDEV ? "it leads out of the directory that is served"
			      : strerror(error);
}

bool same_inode(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

bool has_no_name(const char *base)
{
	return !base[0] || strcmp(base, ".") == 0 || strcmp(base, "..") == 0;
}

void base_name(const char *path, char ret_name[NAME_MAX + 1])
{
	size_t end = strlen(path), start;

	while (end > 0 && path[end - 1] == '/')
		end--;
	for (start = end; start > 0 && path[start - 1] != '/';)
		start--;
	snprintf(ret_name, NAME_MAX + 1, "%.*s", (int)(end - start), path + start);
}
