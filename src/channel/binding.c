/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "channel/channel.h"
#include "channel/counter.h"
#include "channel/keepalive.h"
#include "channel/wait.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/sleep.h"

/* Every sentence begins with what the counter was to be bound to. */
static int refuse_binding(int error, const struct pier_mr *mr, const char *reason)
{
	return pier_fail(error, "binding a counter to %llu bytes on %s: %s",
			 (unsigned long long)mr->length, mr->pd->device->name, reason);
}

/* The counter is locked and has a binding. */
static struct pier_counter_binding *first_binding(const struct pier_counter *counter)
{
	return pier_container_of(counter->bindings.next, struct pier_counter_binding,
				 link);
}

static int check_binding(const struct pier_counter *counter, const struct pier_mr *mr,
			 const struct pier_channel *channel)
{
	bool by_channel = channel;

	if (counter->pd != mr->pd || (channel && channel->pd != mr->pd))
		return refuse_binding(EINVAL, mr,
				      "the counter, the region and the channel are not "
				      "all in one protection domain");
	if (!(mr->access & PIER_ACCESS_REMOTE_WRITE))
		return refuse_binding(
			EACCES, mr,
			"peers may not write to the region: its access lacks "
			"PIER_ACCESS_REMOTE_WRITE");
	if (channel && !(channel->attr.access & PIER_ACCESS_REMOTE_WRITE))
		return refuse_binding(
			EACCES, mr,
			"peers may not write through the channel: its access lacks "
			"PIER_ACCESS_REMOTE_WRITE");
	if (counter->binding_count == 0 ||
	    (first_binding(counter)->channel != NULL) == by_channel)
		return 0;
	return refuse_binding(EINVAL, mr,
			      by_channel ? "the counter is bound natively; it cannot "
					   "have channels bound as well"
					 : "the counter has channels bound; it cannot be "
					   "bound natively as well");
}

/* Check the rules for all kinds of bindings and allocate one. */
static int new_binding(struct pier_counter *counter, struct pier_mr *mr,
		       struct pier_channel *channel,
		       struct pier_counter_binding **ret_binding)
{
	struct pier_counter_binding *binding;
	struct pollfd *fds;
	int error = check_binding(counter, mr, channel);

	if (error)
		return error;
	fds = reallocarray(counter->fds, counter->binding_count + 1u, sizeof(*fds));
	if (!fds)
		return refuse_binding(ENOMEM, mr, "out of memory");
	counter->fds = fds;
	binding = calloc(1, sizeof(*binding));
	if (!binding)
		return refuse_binding(ENOMEM, mr, "out of memory");
	*binding = (struct pier_counter_binding){ .counter = counter,
						  .mr = mr,
						  .channel = channel };
	*ret_binding = binding;
	return 0;
}

/* The region and the counter keep each other alive. */
static void attach_binding(struct pier_counter_binding *binding)
{
	struct pier_counter *counter = binding->counter;
	struct pier_list *before = &counter->bindings;

	pier_list_for_each(struct pier_counter_binding, other, &counter->bindings, link) {
		if (other->channel == binding->channel)
			before = &other->link;
	}
	pier_list_append(before, &binding->link);
	counter->binding_count++;
	atomic_fetch_add(&binding->mr->counters, 1);
}

static void detach_binding(struct pier_counter_binding *binding)
{
	pier_list_remove(&binding->link);
	binding->counter->binding_count--;
	atomic_fetch_sub(&binding->mr->counters, 1);
	free(binding);
}

/* Set the counter of the first `count` verbs regions, each of which counts on its own. */
static int set_device_counter(const struct pier_mr *mr, uint32_t count,
			      struct pier_provider_counter *value)
{
	const struct pier_provider *provider = mr->pd->device->provider;
	int error = 0;

	for (uint32_t i = 0; i < count && !error; i++) {
		error = provider->bind_counter(mr->parts ? mr->parts[i].mr : mr->mr,
					       value);
		if (error && value && i > 0)
			set_device_counter(mr, i, NULL);
	}
	return error;
}

static int bind_to_device(struct pier_counter *counter, struct pier_mr *mr)
{
	struct pier_counter_binding *binding = NULL;
	int error = new_binding(counter, mr, NULL, &binding);

	if (error)
		return error;
	pier_clear_error();
	error = set_device_counter(mr, pier_mr_parts(mr), &counter->count);
	if (error) {
		free(binding);
		return error == EBUSY
			       ? refuse_binding(EBUSY, mr, "the region has a counter")
			       : pier_fail_because(
					 error, "binding a counter to %llu bytes on %s",
					 (unsigned long long)mr->length,
					 mr->pd->device->name);
	}
	attach_binding(binding);
	return 0;
}

int pier_counter_bind(struct pier_counter *counter, struct pier_mr *mr)
{
	PIER_REFUSE_NULL(counter, mr);
	int error = pier_check_process(&counter->object);

	if (error)
		return error;
	if (!mr->pd->device->provider->bind_counter)
		return refuse_binding(
			EOPNOTSUPP, mr,
			"the device does not count writes. Where peers write with "
			"immediate data (PIER_POST_IMMEDIATE), "
			"pier_counter_bind_imm() counts them");
	if (mr->window)
		return refuse_binding(
			EOPNOTSUPP, mr,
			"it is a memory window, and devices count what is written "
			"into regions: pier_mr_reg_sub() makes one");
	pthread_mutex_lock(&counter->lock);
	error = bind_to_device(counter, mr);
	pthread_mutex_unlock(&counter->lock);
	return error;
}

int pier_counter_bind_imm(struct pier_counter *counter, struct pier_mr *mr,
			  struct pier_channel *channel, uint32_t immediate)
{
	PIER_REFUSE_NULL(counter, mr, channel);
	struct pier_counter_binding *binding = NULL;
	int error = pier_check_process(&counter->object);

	if (error)
		return error;
	pthread_mutex_lock(&counter->lock);
	error = new_binding(counter, mr, channel, &binding);
	if (!error) {
		binding->immediate = immediate;
		error = pier_expect_arrivals(binding);
		if (error)
			free(binding);
		else
			attach_binding(binding);
	}
	pthread_mutex_unlock(&counter->lock);
	return error;
}

static int end_binding(struct pier_counter_binding *binding)
{
	const struct pier_mr *mr = binding->mr;
	int error = 0;

	pier_clear_error();
	if (binding->channel)
		pier_forget_arrivals(binding->channel, binding->immediate);
	else
		error = set_device_counter(mr, pier_mr_parts(mr), NULL);
	if (error)
		return pier_fail_because(
			error, "unbinding a counter from %llu bytes on %s",
			(unsigned long long)mr->length, mr->pd->device->name);
	detach_binding(binding);
	return 0;
}

int pier_counter_unbind(struct pier_counter *counter, struct pier_mr *mr)
{
	PIER_REFUSE_NULL(counter, mr);
	bool found = false;
	int error = pier_check_process(&counter->object);

	if (error)
		return error;
	pthread_mutex_lock(&counter->lock);
	pier_list_for_each_safe(struct pier_counter_binding, binding, following,
				&counter->bindings, link) {
		if (binding->mr != mr || error)
			continue;
		found = true;
		error = end_binding(binding);
	}
	pthread_mutex_unlock(&counter->lock);
	if (!found)
		return pier_fail(ENOENT,
				 "unbinding a counter from %llu bytes on %s: it is not "
				 "bound to them",
				 (unsigned long long)mr->length, mr->pd->device->name);
	return error;
}

void pier_end_arrivals(struct pier_channel *channel)
{
	while (channel->arrival_count > 0) {
		struct pier_counter_binding *binding = channel->arrivals[0];
		struct pier_counter *counter = binding->counter;

		pthread_mutex_lock(&counter->lock);
		pier_forget_arrivals(channel, binding->immediate);
		detach_binding(binding);
		pthread_mutex_unlock(&counter->lock);
	}
}

static bool has_reached(const struct pier_counter *counter, uint64_t threshold)
{
	return pier_counter_read(counter) >= threshold;
}

/* Returns 0, -ETIMEDOUT without a sentence, or -EINTR. */
static int sleep_until_woken(struct pier_counter *counter, uint64_t threshold,
			     int64_t deadline)
{
	bool done;
	int error = 0;

	pthread_mutex_lock(&counter->sleeping);
	while (!(done = has_reached(counter, threshold)) && !error) {
		if (threshold < counter->wake_at)
			counter->wake_at = threshold;
		error = pier_sleep_on(&counter->grown, &counter->sleeping, deadline);
	}
	pthread_mutex_unlock(&counter->sleeping);
	return done ? 0 : error;
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
	has = !pier_list_empty(&counter->bindings) && first_binding(counter)->channel;
	pthread_mutex_unlock(&counter->lock);
	return has;
}

int pier_counter_wait(struct pier_counter *counter, uint64_t threshold, int timeout_ms)
{
	PIER_REFUSE_NULL(counter);
	int error = pier_check_process(&counter->object);
	int64_t deadline;

	if (!error)
		error = pier_check_timeout(timeout_ms, PIER_TIMEOUT_USUAL, &timeout_ms);
	if (error)
		return error;
	deadline = pier_deadline(timeout_ms);
	if (has_reached(counter, threshold))
		return 1;
	error = has_channels(counter) ? wait_on_channels(counter, threshold, deadline)
				      : sleep_until_woken(counter, threshold, deadline);
	if (error == -ETIMEDOUT && timeout_ms == 0)
		return 0;
	if (error == -ETIMEDOUT)
		return pier_fail(
			ETIMEDOUT,
			"a counter did not reach %llu within %d ms; it is at %llu",
			(unsigned long long)threshold, timeout_ms,
			(unsigned long long)pier_counter_read(counter));
	return error ? error : 1;
}
