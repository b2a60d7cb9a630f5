/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CORE_CLOCK_H
#define PIER_CORE_CLOCK_H

#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <time.h>

/*
 * The clock of the library, and its waits. Nothing else asks for the time, or waits for a
 * limited time, except soft0: it has a clock of its own, as hardware has. A unit test
 * replaces these three functions at link time (tests/support/manual_clock.c).
 *
 * Points in time are nanoseconds of CLOCK_MONOTONIC, which setting clocks does not move.
 */
int64_t pier_now(void);

/* Like poll(2). */
int pier_clock_poll(struct pollfd *fds, nfds_t count, int timeout_ms);

/*
 * Like pthread_cond_timedwait(3): 0, or ETIMEDOUT at the deadline. The condition is one
 * of pier_init_cond().
 */
int pier_clock_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline);

/* The clock of soft0. */
static inline int64_t pier_device_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#endif
