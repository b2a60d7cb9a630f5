/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "channel/channel.h"
#include "core/caller.h"
#include "core/error.h"
#include "core/object.h"
#include "core/thread.h"
#include "counter.h"

/* The provider's notify callback; the provider holds its locks. */
static void wake_waiters(struct pier_provider_counter *count)
{
	struct pier_counter *counter = pier_container_of(count, struct pier_counter,
							 count);

	pthread_mutex_lock(&counter->sleeping);
	if (pier_counter_read(counter) >= counter->wake_at) {
		counter->wake_at = UINT64_MAX;
		pthread_cond_broadcast(&counter->grown);
	}
	pthread_mutex_unlock(&counter->sleeping);
}

static void describe_counter(const struct pier_object *object, char *ret_text,
			     size_t size)
{
	const struct pier_counter *counter = (const struct pier_counter *)object;

	snprintf(ret_text, size, "counter on %s", counter->pd->device->name);
}

static int new_counter(struct pier_pd *pd, struct pier_counter **ret_counter)
{
	struct pier_counter *counter = calloc(1, sizeof(*counter));
	int error;

	if (!counter)
		return pier_fail(ENOMEM, "no memory for a counter");
	error = pier_init_cond(&counter->grown);
	if (error) {
		free(counter);
		return pier_fail(error, "no condition variable for a counter");
	}
	/* Both allocate nothing and cannot fail (pthread_mutex_init(3)). */
	pthread_mutex_init(&counter->sleeping, NULL);
	pthread_mutex_init(&counter->lock, NULL);
	pier_list_init(&counter->bindings);
	counter->count.notify = wake_waiters;
	counter->wake_at = UINT64_MAX;
	counter->pd = pd;
	counter->object.describe = describe_counter;
	*ret_counter = counter;
	return 0;
}

int pier_counter_create(struct pier_pd *pd, struct pier_counter **ret_counter)
{
	PIER_REFUSE_NULL(pd, ret_counter);
	PIER_ENTRY();
	struct pier_counter *counter = NULL;
	int error = pier_check_process(&pd->object);

	if (!error)
		error = new_counter(pd, &counter);
	if (error)
		return error;
	atomic_fetch_add(&pd->children, 1);
	pier_object_track(&counter->object, PIER_OBJECT_COUNTER, &pd->object);
	*ret_counter = counter;
	return 0;
}

int pier_counter_destroy(struct pier_counter *counter)
{
	uint32_t bindings;

	if (!counter)
		return 0;
	if (pier_inherited(&counter->object))
		return pier_fail_inherited(&counter->object);
	pthread_mutex_lock(&counter->lock);
	bindings = counter->binding_count;
	pthread_mutex_unlock(&counter->lock);
	if (bindings)
		return pier_fail(EBUSY,
				 "destroying a counter: it is bound %u time%s; call "
				 "pier_counter_unbind() first",
				 bindings, bindings == 1 ? "" : "s");
	pier_object_untrack(&counter->object);
	pthread_mutex_destroy(&counter->lock);
	pthread_mutex_destroy(&counter->sleeping);
	pthread_cond_destroy(&counter->grown);
	atomic_fetch_sub(&counter->pd->children, 1);
	free(counter->fds);
	free(counter);
	return 0;
}

uint64_t pier_counter_read(const struct pier_counter *counter)
{
	PIER_REFUSE_NULL_AS(0, counter);
	return atomic_load(&counter->count.value);
}

int pier_counter_add(struct pier_counter *counter, uint64_t value)
{
	PIER_REFUSE_NULL(counter);
	if (pier_inherited(&counter->object))
		return pier_fail_inherited(&counter->object);
	atomic_fetch_add(&counter->count.value, value);
	wake_waiters(&counter->count);
	return 0;
}

/*
 * A channel keeps its bindings sorted by immediate, so that a completion finds its
 * binding by binary search.
 */

/* The index of the first binding whose immediate is not less. */
static uint32_t find_arrival(const struct pier_channel *channel, uint32_t immediate)
{
	uint32_t first = 0, count = channel->arrival_count;

	while (count > 0) {
		uint32_t half = count / 2;

		if (channel->arrivals[first + half]->immediate < immediate) {
			first += half + 1;
			count -= half + 1;
		} else {
			count = half;
		}
	}
	return first;
}

static bool is_arrival_at(const struct pier_channel *channel, uint32_t index,
			  uint32_t immediate)
{
	return index < channel->arrival_count &&
	       channel->arrivals[index]->immediate == immediate;
}

void pier_count_arrival(const struct pier_channel *channel, uint32_t immediate)
{
	uint32_t index = find_arrival(channel, immediate);

	if (is_arrival_at(channel, index, immediate))
		atomic_fetch_add(&channel->arrivals[index]->counter->count.value, 1);
}

int pier_expect_arrivals(struct pier_counter_binding *binding)
{
	struct pier_channel *channel = binding->channel;
	uint32_t index = find_arrival(channel, binding->immediate);
	struct pier_counter_binding **arrivals;

	if (is_arrival_at(channel, index, binding->immediate))
		return pier_fail(EBUSY,
				 "binding a counter to immediate %#x of a channel: the "
				 "immediate has a counter already",
				 binding->immediate);
	arrivals = reallocarray(channel->arrivals, channel->arrival_count + 1u,
				sizeof(struct pier_counter_binding *));
	if (!arrivals)
		return pier_fail(ENOMEM, "no memory for a counter's immediate");
	memmove(arrivals + index + 1, arrivals + index,
		(channel->arrival_count - index) * sizeof(struct pier_counter_binding *));
	arrivals[index] = binding;
	channel->arrivals = arrivals;
	channel->arrival_count++;
	return 0;
}

void pier_forget_arrivals(struct pier_channel *channel, uint32_t immediate)
{
	uint32_t index = find_arrival(channel, immediate);

	channel->arrival_count--;
	memmove(channel->arrivals + index, channel->arrivals + index + 1,
		(channel->arrival_count - index) * sizeof(struct pier_counter_binding *));
	if (channel->arrival_count > 0)
		return;
	free(channel->arrivals);
	channel->arrivals = NULL;
}
