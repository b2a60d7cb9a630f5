/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "arrival.h"
#include "channel/channel.h"
#include "core/error.h"
#include "counter.h"

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
