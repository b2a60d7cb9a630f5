/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Preload it: below the directory FOLD_BELOW, names differ in more than case, as with
 * vfat, CIFS, or ext4's casefold. With FOLD_PLACES, not in the directories of unfinished
 * trees.
 */

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int interposed_openat64(int directory, const char *path, int flags,
			...) __asm__("openat64");
int interposed_mkdirat(int directory, const char *path, mode_t mode) __asm__("mkdirat");
int interposed_fstatat64(int directory, const char *path, struct stat *stat,
			 int flags) __asm__("fstatat64");
int interposed_symlinkat(const char *target, int directory,
			 const char *path) __asm__("symlinkat");
int interposed_unlinkat(int directory, const char *path, int flags) __asm__("unlinkat");
int interposed_renameat(int from, const char *old, int to,
			const char *new) __asm__("renameat");
int interposed_renameat2(int from, const char *old, int to, const char *new,
			 unsigned int flags) __asm__("renameat2");

static bool is_folding(int directory)
{
	const char *below = getenv("FOLD_BELOW");
	char self[32], path[PATH_MAX];
	ssize_t length;

	snprintf(self, sizeof(self), "/proc/self/fd/%d", directory);
	length = directory < 0 ? -1 : readlink(self, path, sizeof(path) - 1);
	if (!below || length < 0)
		return false;
	path[length] = '\0';
	return strncmp(path, below, strlen(below)) == 0 &&
	       !(getenv("FOLD_PLACES") && strstr(path, ".pier-"));
}

static const char *fold(int directory, const char *path, char buffer[PATH_MAX])
{
	size_t i;

	if (!is_folding(directory))
		return path;
	for (i = 0; path[i] && i < PATH_MAX - 1; i++)
		buffer[i] = (char)tolower((unsigned char)path[i]);
	buffer[i] = '\0';
	return buffer;
}

int interposed_openat64(int directory, const char *path, int flags, ...)
{
	char buffer[PATH_MAX];
	va_list arguments;
	unsigned int mode;

	va_start(arguments, flags);
	mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, unsigned int) : 0;
	va_end(arguments);
	return (int)syscall(SYS_openat, directory, fold(directory, path, buffer), flags,
			    mode);
}

int interposed_mkdirat(int directory, const char *path, mode_t mode)
{
	char buffer[PATH_MAX];

	return (int)syscall(SYS_mkdirat, directory, fold(directory, path, buffer), mode);
}

int interposed_fstatat64(int directory, const char *path, struct stat *stat, int flags)
{
	char buffer[PATH_MAX];

	return (int)syscall(SYS_newfstatat, directory, fold(directory, path, buffer),
			    stat, flags);
}

int interposed_symlinkat(const char *target, int directory, const char *path)
{
	char buffer[PATH_MAX];

	return (int)syscall(SYS_symlinkat, target, directory,
			    fold(directory, path, buffer));
}

int interposed_unlinkat(int directory, const char *path, int flags)
{
	char buffer[PATH_MAX];

	return (int)syscall(SYS_unlinkat, directory, fold(directory, path, buffer),
			    flags);
}

int interposed_renameat(int from, const char *old, int to, const char *new)
{
	return interposed_renameat2(from, old, to, new, 0);
}

int interposed_renameat2(int from, const char *old, int to, const char *new,
			 unsigned int flags)
{
	char old_buffer[PATH_MAX], new_buffer[PATH_MAX];

	return (int)syscall(SYS_renameat2, from, fold(from, old, old_buffer), to,
			    fold(to, new, new_buffer), flags);
}
