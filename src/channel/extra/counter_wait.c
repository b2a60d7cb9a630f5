/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "channel/channel.h"
#include "counter.h"
#include "keepalive.h"
#include "channel/spin.h"
#include "core/deadline.h"
#include "core/error.h"

static bool reached(const struct pier_counter *counter, uint64_t threshold)
{
	return pier_counter_read(counter) >= threshold;
}

/* 0, or -ETIMEDOUT without a sentence. */
static int sleep_until_woken(struct pier_counter *counter, uint64_t threshold,
			     int64_t deadline)
{
	struct timespec until = { .tv_sec = deadline / 1000000000,
				  .tv_nsec = deadline % 1000000000 };
	bool done;
	int error = 0;

	pthread_mutex_lock(&counter->sleeping);
	while (!(done = reached(counter, threshold)) && !error) {
		if (threshold < counter->wake_at)
			counter->wake_at = threshold;
		error = pthread_cond_timedwait(&counter->grown, &counter->sleeping,
					       &until);
	}
	pthread_mutex_unlock(&counter->sleeping);
	return done ? 0 : -error;
}

/* From there on, the first that is not the last one: each stands in a row. */
static struct pier_channel *next_channel(const struct pier_counter *counter,
					 const struct pier_list **at,
					 const struct pier_channel *last)
{
	for (; *at != &counter->bindings; *at = (*at)->next) {
		const struct pier_counter_binding *binding = pier_container_of(
			*at, const struct pier_counter_binding, link);

		if (binding->channel != last)
			return binding->channel;
	}
	return NULL;
}

/*
 * Collect the completions of all channels, each once, by pier_collect() or
 * pier_channel_arm(). 1: the value is reached; 0: not yet; or an error.
 */
static int look(struct pier_counter *counter, uint64_t threshold,
		int (*collect)(struct pier_channel *))
{
	const struct pier_list *at = counter->bindings.next;
	struct pier_channel *channel = NULL, *broken = NULL;
	int count;

	while ((channel = next_channel(counter, &at, channel))) {
		count = collect(channel);
		if (count < 0)
			return count;
		if (channel->broken)
			broken = channel;
	}
	if (reached(counter, threshold))
		return 1;
	return broken ? pier_fail_broken(broken) : 0;
}

/* 0, also when a signal came; -ETIMEDOUT without a sentence; or another error. */
static int sleep_on_channels(struct pier_counter *counter, int64_t deadline)
{
	const struct pier_list *at = counter->bindings.next;
	struct pier_channel *channel = NULL;
	int timeout = pier_poll_timeout(deadline);
	nfds_t count = 0;

	if (timeout == 0)
		return -ETIMEDOUT;
	while ((channel = next_channel(counter, &at, channel))) {
		timeout = pier_sleep_ms(channel, timeout);
		counter->fds[count++] = (struct pollfd){ .fd = channel->events->fd,
							 .events = POLLIN };
	}
	if (poll(counter->fds, count, timeout) < 0 && errno != EINTR)
		return pier_fail(errno, "poll the completion channels of a counter: %s",
				 strerror(errno));
	return 0;
}

/* What completes after its channel was armed makes the channel's fd readable. */
static int wait_on_channels(struct pier_counter *counter, uint64_t threshold,
			    int64_t deadline)
{
	struct pier_spin spin = pier_begin_spin(PIER_WAIT_ADAPTIVE, PIER_SPIN_US,
						deadline);
	int done = 0, error = 0;

	while (!done && pier_spin_again(&spin))
		done = look(counter, threshold, pier_collect);
	while (!done && !error) {
		done = look(counter, threshold, pier_channel_arm);
		if (!done)
			error = sleep_on_channels(counter, deadline);
	}
	return done < 0 ? done : error;
}

static bool has_channels(struct pier_counter *counter)
{
	bool has;

	pthread_mutex_lock(&counter->lock);
	has = !pier_list_empty(&counter->bindings) &&
	      pier_first_binding(counter)->channel;
	pthread_mutex_unlock(&counter->lock);
	return has;
}

int pier_counter_wait(struct pier_counter *counter, uint64_t threshold, int timeout_ms)
{
	int64_t deadline = pier_deadline(timeout_ms);
	int error = pier_check_process(&counter->object);

	if (error)
		return error;
	if (timeout_ms < 0)
		return pier_fail(EINVAL,
				 "waiting for a counter: timeout_ms %d is negative",
				 timeout_ms);
	if (reached(counter, threshold))
		return 0;
	error = has_channels(counter) ? wait_on_channels(counter, threshold, deadline)
				      : sleep_until_woken(counter, threshold, deadline);
	if (error == -ETIMEDOUT)
		return pier_fail(
			ETIMEDOUT,
			"a counter did not reach %llu within %d ms; it is at %llu",
			(unsigned long long)threshold, timeout_ms,
			(unsigned long long)pier_counter_read(counter));
	return error;
}
