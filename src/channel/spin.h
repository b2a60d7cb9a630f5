/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_SPIN_H
#define PIER_CHANNEL_SPIN_H

#include <stdbool.h>
#include <stdint.h>

#include <pier/channel.h>

#include "core/deadline.h"

/*
 * How long to look again and again before sleeping: what PIER_WAIT_ADAPTIVE and so on
 * mean, for every wait.
 */

enum {
	/* Reading the clock takes as long as polling an empty queue of a NIC. */
	PIER_LOOKS_PER_CLOCK = 8,
	/* Of waits that are of no single channel. */
	PIER_SPIN_US = 50,
};

struct pier_spin {
	int64_t budget; /* in nanoseconds; 0: no looking */
	int64_t deadline;
	int64_t end; /* known from the first reading of the clock on */
	uint32_t looks;
};

static inline struct pier_spin pier_begin_spin(enum pier_waiting waiting,
					       uint32_t spin_us, int64_t deadline)
{
	struct pier_spin spin = { .budget = (int64_t)spin_us * 1000,
				  .deadline = deadline };

	if (waiting == PIER_WAIT_EVENT)
		spin.budget = 0;
	if (waiting == PIER_WAIT_POLL)
		spin.budget = INT64_MAX;
	return spin;
}

/* Whether to look once more before sleeping; false also when the deadline is over. */
static inline bool pier_spin_again(struct pier_spin *spin)
{
	int64_t now;

	if (spin->budget == 0)
		return false;
	if (++spin->looks % PIER_LOOKS_PER_CLOCK)
		return true;
	now = pier_now();
	if (spin->looks == PIER_LOOKS_PER_CLOCK)
		spin->end = spin->budget < spin->deadline - now ? now + spin->budget
								: spin->deadline;
	return now < spin->end;
}

#endif
