/* SPDX-License-Identifier: BSD-3-Clause */
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "sysfs.h"

bool pier_read_sysfs(char *ret_line, size_t size, const char *format, ...)
{
	char path[PATH_MAX];
	ssize_t length;
	va_list args;
	int fd, printed;

	va_start(args, format);
	printed = vsnprintf(path, sizeof(path), format, args);
	va_end(args);
	if (printed < 0 || (size_t)printed >= sizeof(path))
		return false;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return false;
	length = read(fd, ret_line, size);
	close(fd);
	if (length < 2 || ret_line[length - 1] != '\n')
		return false;
	ret_line[length - 1] = '\0';
	return true;
}
