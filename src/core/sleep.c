/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include <pier/waiting.h>

#include "clock.h"
#include "error.h"
#include "sleep.h"

enum {
	/* A signal that arrives just before poll(2) is noticed after this time. */
	PIER_INTERRUPT_MS = 50,
};

static _Thread_local struct {
	pier_interrupt_check *check;
	void *context;
} interrupt;

void pier_interrupt_set(pier_interrupt_check *check, void *context)
{
	interrupt.check = check;
	interrupt.context = context;
}

static int check_interrupt(void)
{
	if (interrupt.check && interrupt.check(interrupt.context))
		return pier_fail(EINTR, "the wait was interrupted");
	return 0;
}

int pier_sleep(struct pollfd *fds, nfds_t count, int timeout_ms)
{
	int ready;

	if (interrupt.check && timeout_ms > PIER_INTERRUPT_MS)
		timeout_ms = PIER_INTERRUPT_MS;
	ready = pier_clock_poll(fds, count, timeout_ms);
	if (ready < 0 && errno != EINTR)
		return -errno;
	if (ready <= 0 && check_interrupt())
		return -EINTR;
	return ready < 0 ? 0 : ready;
}

int pier_sleep_on(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline)
{
	int64_t next = pier_now() + (int64_t)PIER_INTERRUPT_MS * 1000000;
	int error;

	if (!interrupt.check || next > deadline)
		next = deadline;
	error = -pier_clock_wait(cond, lock, next);
	if (error != -ETIMEDOUT || !interrupt.check)
		return error;
	/* The check may wait for a thread that waits for the lock. */
	pthread_mutex_unlock(lock);
	error = check_interrupt();
	pthread_mutex_lock(lock);
	if (error)
		return error;
	return next == deadline ? -ETIMEDOUT : 0;
}
