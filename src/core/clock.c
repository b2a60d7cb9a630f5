/* SPDX-License-Identifier: BSD-3-Clause */
#include "clock.h"

int64_t pier_now(void)
{
	return pier_device_now();
}

int pier_clock_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
	return poll(fds, count, timeout_ms);
}

int pier_clock_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline)
{
	struct timespec until = { .tv_sec = deadline / 1000000000,
				  .tv_nsec = deadline % 1000000000 };

	return pthread_cond_timedwait(cond, lock, &until);
}
