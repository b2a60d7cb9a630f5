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

int pier_sleep(struct pollfd *fds, nfds_t count, int timeout_ms)
{
	int ready;

	if (interrupt.check && timeout_ms > PIER_INTERRUPT_MS)
		timeout_ms = PIER_INTERRUPT_MS;
	ready = pier_clock_poll(fds, count, timeout_ms);
	if (ready < 0 && errno != EINTR)
		return -errno;
	if (ready <= 0 && interrupt.check && interrupt.check(interrupt.context))
		return pier_fail(EINTR, "the wait was interrupted");
	return ready < 0 ? 0 : ready;
}
