/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Preload it: fsync(2) of a file or of a directory, depending on HOLD_KIND, waits while
 * the file HOLD exists, which it has created with its process ID. CLOCK_MONOTONIC is
 * slow, so that no time limit of the program expires meanwhile.
 */

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
	SLOWNESS = 100,
};

int interposed_fsync(int fd) __asm__("fsync");
int interposed_clock_gettime(clockid_t clock,
			     struct timespec *ret_now) __asm__("clock_gettime");

int interposed_clock_gettime(clockid_t clock, struct timespec *ret_now)
{
	int error = (int)syscall(SYS_clock_gettime, clock, ret_now);
	long long slow;

	if (error || clock != CLOCK_MONOTONIC)
		return error;
	slow = (ret_now->tv_sec * 1000000000LL + ret_now->tv_nsec) / SLOWNESS;
	ret_now->tv_sec = slow / 1000000000;
	ret_now->tv_nsec = slow % 1000000000;
	return 0;
}

static int is_held(int fd)
{
	const char *kind = getenv("HOLD_KIND");
	struct stat stat;

	return kind && fstat(fd, &stat) == 0 &&
	       (S_ISDIR(stat.st_mode) ? strcmp(kind, "directory")
				      : strcmp(kind, "file")) == 0;
}

static void hold(const char *path)
{
	FILE *file = fopen(path, "we");

	if (!file)
		return;
	fprintf(file, "%d\n", (int)getpid());
	fclose(file);
	while (access(path, F_OK) == 0)
		poll(NULL, 0, 5);
}

int interposed_fsync(int fd)
{
	if (is_held(fd))
		hold(getenv("HOLD"));
	return (int)syscall(SYS_fsync, fd);
}
