/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/clock.h"
#include "manual_clock.h"

enum {
	TICK_NS = 10,
	HURRIED_TICK_NS = 10000,
	LONGEST_PASS_NS = 20000000,
	LOOK_MS = 5, /* between two looks at the clock */
	HANGS_AFTER_LOOKS = 120 * 1000 / LOOK_MS,
};

static struct {
	_Atomic int64_t now, seen;
	atomic_bool hurries, runs;
} manual = { .now = INT64_C(1000000000000) };

void manual_clock_advance(int ms)
{
	atomic_fetch_add(&manual.now, (int64_t)ms * 1000000);
}

void manual_clock_hurry(bool hurries)
{
	atomic_store(&manual.hurries, hurries);
}

/* Add the time since the last call, but not that in which the program was stopped. */
static void pass_time(void)
{
	int64_t seen, passed;

	if (!atomic_load(&manual.runs))
		return;
	seen = pier_device_now();
	passed = seen - atomic_exchange(&manual.seen, seen);
	if (passed > LONGEST_PASS_NS)
		passed = LONGEST_PASS_NS;
	if (passed > 0)
		atomic_fetch_add(&manual.now, passed);
}

void manual_clock_run(void)
{
	atomic_store(&manual.seen, pier_device_now());
	atomic_store(&manual.runs, true);
}

int64_t pier_now(void)
{
	int64_t tick = atomic_load(&manual.hurries) ? HURRIED_TICK_NS : TICK_NS;

	pass_time();
	return atomic_fetch_add(&manual.now, tick);
}

/* Whether a wait has ended; the clock may be moved for it. */
static bool is_over(int64_t end, int looks)
{
	int64_t now;

	pass_time();
	now = atomic_load(&manual.now);
	while (now < end && atomic_load(&manual.hurries))
		if (atomic_compare_exchange_weak(&manual.now, &now, end))
			now = end;
	if (looks == HANGS_AFTER_LOOKS) {
		fprintf(stderr,
			"a wait does not end: no event, and the clock stands still\n");
		abort();
	}
	return atomic_load(&manual.now) >= end;
}

int pier_clock_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
	int64_t end = pier_now() + (int64_t)timeout_ms * 1000000;
	int ready = poll(fds, count, timeout_ms < 0 ? -1 : 0);
	/* A running clock may reach the end of a short wait before the next look. */
	int look_ms = atomic_load(&manual.runs) && timeout_ms < LOOK_MS ? 1 : LOOK_MS;

	for (int looks = 0; ready == 0 && !is_over(end, looks); looks++)
		ready = poll(fds, count, look_ms);
	return ready;
}

int pier_clock_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline)
{
	int error = ETIMEDOUT;

	for (int looks = 0; error == ETIMEDOUT && !is_over(deadline, looks); looks++) {
		int64_t until = pier_device_now() + LOOK_MS * 1000000;
		struct timespec look = { .tv_sec = until / 1000000000,
					 .tv_nsec = until % 1000000000 };

		error = pthread_cond_timedwait(cond, lock, &look);
	}
	return error;
}
