/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef BENCH_H
#define BENCH_H

/*
 * Shared by the programs of this folder. The includer defines PROGRAM, its name, first.
 */

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <pier/error.h>

static inline void die(const char *step)
{
	fprintf(stderr, PROGRAM ": %s: %s\n", step, pier_error_message());
	exit(1);
}

/* Seconds since an arbitrary time. */
static inline double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* For qsort(3). */
static inline int compare_times(const void *a, const void *b)
{
	double first = *(const double *)a, second = *(const double *)b;

	return (first > second) - (first < second);
}

/* Both ends send at the same time, at most as much as a socket's buffer holds. */
static inline void exchange(int fd, const void *mine, void *theirs, size_t size)
{
	size_t got = 0;

	if (write(fd, mine, size) != (ssize_t)size)
		die("write");
	while (got < size) {
		ssize_t part = read(fd, (char *)theirs + got, size - got);

		if (part <= 0)
			die("the peer has gone");
		got += (size_t)part;
	}
}

#endif
