/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Preload it: no file system supports O_TMPFILE, as is the case for network file
 * systems.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

int interposed_openat(int directory, const char *path, int flags, ...) __asm__("openat");
int interposed_openat64(int directory, const char *path, int flags,
			...) __asm__("openat64");

static int open_here(int directory, const char *path, int flags, unsigned int mode)
{
	if ((flags & O_TMPFILE) == O_TMPFILE) {
		errno = EOPNOTSUPP;
		return -1;
	}
	return (int)syscall(SYS_openat, directory, path, flags, mode);
}

int interposed_openat(int directory, const char *path, int flags, ...)
{
	va_list arguments;
	unsigned int mode;

	va_start(arguments, flags);
	mode = flags & O_CREAT ? va_arg(arguments, unsigned int) : 0;
	va_end(arguments);
	return open_here(directory, path, flags, mode);
}

int interposed_openat64(int directory, const char *path, int flags, ...)
{
	va_list arguments;
	unsigned int mode;

	va_start(arguments, flags);
	mode = flags & O_CREAT ? va_arg(arguments, unsigned int) : 0;
	va_end(arguments);
	return open_here(directory, path, flags, mode);
}
