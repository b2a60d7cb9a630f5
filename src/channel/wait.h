/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_WAIT_H
#define PIER_CHANNEL_WAIT_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

#include "channel.h"

/*
 * The wait loop: every wait for completions, of one channel or of several, runs through
 * pier_wait_until(). It polls for as long as the channels' waiting mode says
 * (pier_channel_set_waiting()), then sleeps on their fds, and wakes up in time for
 * keepalives and for the events of their devices.
 */

enum {
	/* Reading the clock takes as long as polling an empty queue of a NIC. */
	PIER_LOOKS_PER_CLOCK = 8,
	/* How long a wait sleeps at a time, if a device has asynchronous events. */
	PIER_EVENTS_MS = 1000,
};

/* The result of a check that does not fail. */
enum pier_condition_state {
	PIER_CONDITION_PENDING = 0,
	PIER_CONDITION_HOLDS = 1,
	/* Pending, but something happened: poll again before sleeping. */
	PIER_CONDITION_PROGRESS = 2,
};

/* One pass over the channels of a wait. */
struct pier_wait_pass {
	enum pier_wait_step {
		PIER_WAIT_STEP_SPIN,  /* find out how long to poll */
		PIER_WAIT_STEP_ARM,   /* ask for completion events */
		PIER_WAIT_STEP_SLEEP, /* list the fds and the time to wake up */
	} step;
	int64_t spin_ns;
	bool again;		     /* do not sleep now */
	const struct pier_cq *armed; /* the shared CQ that was armed last */
	struct pollfd *fds;
	nfds_t fd_count;
	int timeout_ms;
	const struct pier_device *device; /* of the channel before, while listing fds */
};

/* The condition that a wait waits for. */
struct pier_wait_condition {
	/*
	 * Test the condition, without blocking.
	 *
	 * Returns enum pier_condition_state, or a negative errno, which ends the wait.
	 */
	int (*check)(void *subject);
	/* Collect completions between two checks; NULL: the check collects them. */
	int (*collect)(void *subject);
	/*
	 * Call pier_wait_pass_channel() for each channel that the condition depends on.
	 * A pass that sleeps has no channel that the pass before it, which armed, did
	 * not have.
	 *
	 * Returns 0, or a negative errno, which ends the wait.
	 */
	int (*pass)(void *subject, struct pier_wait_pass *pass);
	void *subject;
	struct pollfd *fds; /* room for all channels */
};

/* Errors: those of pier_channel_arm(); -EIO the device has failed. */
int pier_wait_pass_channel(struct pier_wait_pass *pass, struct pier_channel *channel);

/* Check again at that time, at the latest. */
void pier_wait_pass_until(struct pier_wait_pass *pass, int64_t time);

/*
 * Wait until the condition holds. It is checked at least once; also once after the
 * deadline.
 *
 * Returns 0; -ETIMEDOUT, without a sentence; or the error of a check, of arming or of
 * poll(2).
 */
int pier_wait_until(const struct pier_wait_condition *condition, int64_t deadline);

/* Waits on one channel. */

/*
 * Wait until a request has completed. At the deadline, or if waiting fails, stop the
 * channel, so that the memory of the request is safe to reuse.
 *
 * timeout_ms  the caller's, for the error sentence
 * ret_result  or NULL; also written if the request failed or was stopped
 *
 * Returns 0, or the error of the request or of waiting.
 */
int pier_wait_or_stop(struct pier_channel *channel, struct pier_work work,
		      int64_t deadline, int timeout_ms, struct pier_result *ret_result);

/*
 * Wait until pier_work_poll() has an answer, which may be that the handle is used up.
 *
 * Returns 0, -ETIMEDOUT without a sentence, or another error of waiting. Stops nothing.
 */
int pier_wait_for_work(struct pier_channel *channel, struct pier_work work,
		       int64_t deadline);

/*
 * Why the oldest outstanding send may not complete, in brackets after a blank: by default
 * a NIC repeats a request that finds no receive without limit, and no error says so. ""
 * if it needs no receive.
 */
const char *pier_explain_silence(const struct pier_channel *channel);

/*
 * Wait until the send queue takes `count` more requests. A broken channel is not an error
 * here: the next post reports it.
 *
 * Returns 0, -ETIMEDOUT without a sentence, or another error of waiting. Stops nothing.
 */
int pier_wait_for_room(struct pier_channel *channel, uint32_t count, int64_t deadline);

/* Likewise until everything before these positions of the two queues has completed. */
int pier_wait_for_positions(struct pier_channel *channel, uint64_t sends,
			    uint64_t receives, int64_t deadline);

/* Likewise until the SRQ has delivered a message, or the channel is broken. */
int pier_wait_for_message(struct pier_channel *channel, int64_t deadline);

#endif
