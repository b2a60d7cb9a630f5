/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "binding.h"
#include "channel/channel.h"
#include "channel/poll.h"
#include "channel/wait.h"
#include "core/deadline.h"
#include "core/error.h"

static bool has_reached(const struct pier_counter *counter, uint64_t threshold)
{
	return pier_counter_read(counter) >= threshold;
}

/* Returns 0, or -ETIMEDOUT without a sentence. */
static int sleep_until_woken(struct pier_counter *counter, uint64_t threshold,
			     int64_t deadline)
{
	bool done;
	int error = 0;

	pthread_mutex_lock(&counter->sleeping);
	while (!(done = has_reached(counter, threshold)) && !error) {
		if (threshold < counter->wake_at)
			counter->wake_at = threshold;
		error = pier_clock_wait(&counter->grown, &counter->sleeping, deadline);
	}
	pthread_mutex_unlock(&counter->sleeping);
	return done ? 0 : -error;
}

/* The next channel that is not the last one. The bindings of a channel are adjacent. */
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

/* A wait for a counter that counts on channels. */
struct counter_wait {
	struct pier_counter *counter;
	uint64_t threshold;
};

static int check_counter(void *subject)
{
	const struct counter_wait *wait = subject;
	const struct pier_list *at = wait->counter->bindings.next;
	struct pier_channel *channel = NULL, *broken = NULL;

	if (has_reached(wait->counter, wait->threshold))
		return PIER_CONDITION_HOLDS;
	while ((channel = next_channel(wait->counter, &at, channel))) {
		if (channel->broken)
			broken = channel;
	}
	return broken ? pier_fail_broken(broken) : PIER_CONDITION_PENDING;
}

static int collect_all(void *subject)
{
	const struct counter_wait *wait = subject;
	const struct pier_list *at = wait->counter->bindings.next;
	struct pier_channel *channel = NULL;
	int count = 0;

	while (count >= 0 && (channel = next_channel(wait->counter, &at, channel)))
		count = pier_collect_while_idle(channel);
	return count;
}

static int pass_channels(void *subject, struct pier_wait_pass *pass)
{
	const struct counter_wait *wait = subject;
	const struct pier_list *at = wait->counter->bindings.next;
	struct pier_channel *channel = NULL;
	int error = 0;

	while (!error && (channel = next_channel(wait->counter, &at, channel)))
		error = pier_wait_pass_channel(pass, channel);
	return error;
}

/* Returns 0, -ETIMEDOUT without a sentence, or another error. */
static int wait_on_channels(struct pier_counter *counter, uint64_t threshold,
			    int64_t deadline)
{
	struct counter_wait wait = { .counter = counter, .threshold = threshold };
	const struct pier_wait_condition condition = {
		.check = check_counter,
		.collect = collect_all,
		.pass = pass_channels,
		.subject = &wait,
		.fds = counter->fds,
	};

	return pier_wait_until(&condition, deadline);
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
				 "waiting for a counter: timeout_ms %d: use 0 or more",
				 timeout_ms);
	if (has_reached(counter, threshold))
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
