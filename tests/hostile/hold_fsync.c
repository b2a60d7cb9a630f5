/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Preload it: fsync(2) takes HOLD_MS milliseconds for a file or for a directory,
 * depending on HOLD_KIND. The file HOLD_REACHED is created at the start.
 */

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int interposed_fsync(int fd) __asm__("fsync");

static int is_held(int fd)
{
	const char *kind = getenv("HOLD_KIND");
	struct stat stat;

	return kind && fstat(fd, &stat) == 0 &&
	       (S_ISDIR(stat.st_mode) ? strcmp(kind, "directory")
				      : strcmp(kind, "file")) == 0;
}

int interposed_fsync(int fd)
{
	if (is_held(fd)) {
		close(open(getenv("HOLD_REACHED"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
		poll(NULL, 0, atoi(getenv("HOLD_MS")));
	}
	return (int)syscall(SYS_fsync, fd);
}
