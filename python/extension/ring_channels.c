/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>

#include "queues.h"
#include "ring.h"

#define NAME "ring"

/* The channels of a ring: while fills use them, they cannot be closed. */

/* Room for those of the sources, so that a fill that has begun can record its own. */
static bool reserve_channels(struct pier_py_ring *ring,
			     const struct pier_py_sources *sources)
{
	uint32_t room = ring->channel_count + (sources ? sources->channel_count : 0);
	struct pier_py_channel **channels;
	struct pier_py_queue **queues;

	if (room <= ring->channel_room)
		return true;
	channels = realloc(ring->channels, room * sizeof(struct pier_py_channel *));
	if (channels)
		ring->channels = channels;
	queues = realloc(ring->queues, room * sizeof(struct pier_py_queue *));
	if (queues)
		ring->queues = queues;
	if (channels && queues) {
		ring->channel_room = room;
		return true;
	}
	PyErr_NoMemory();
	return false;
}

static void list_queues(struct pier_py_ring *ring, const struct pier_py_sources *sources)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < ring->channel_count; i++)
		ring->queues[count++] = ring->channels[i]->queue;
	for (uint32_t i = 0; sources && i < sources->channel_count; i++)
		ring->queues[count++] = sources->channels[i]->queue;
	ring->queue_count = pier_py_queues_sort(ring->queues, count);
}

bool pier_py_ring_take_channels(struct pier_py_ring *ring,
				struct pier_py_sources *sources)
{
	if (!reserve_channels(ring, sources))
		return false;
	list_queues(ring, sources);
	return pier_py_queues_take(ring->queues, ring->queue_count);
}

bool pier_py_ring_take(struct pier_py_ring *ring, struct pier_py_sources *sources)
{
	if (!pier_py_lock_take(&ring->lock, NAME, -1))
		return false;
	if (pier_py_ring_take_channels(ring, sources))
		return true;
	pier_py_lock_release(&ring->lock);
	return false;
}

static void add_channel(struct pier_py_ring *ring, struct pier_py_channel *channel)
{
	for (uint32_t i = 0; i < ring->channel_count; i++) {
		if (ring->channels[i] == channel)
			return;
	}
	Py_INCREF((PyObject *)channel);
	ring->channels[ring->channel_count++] = channel;
	channel->queue->users++;
}

/* Forget the channels that no fill uses. The caller drops the references. */
static uint32_t remove_channels(struct pier_py_ring *ring)
{
	uint32_t count = ring->channel_count;

	for (uint32_t i = count; i > 0; i--) {
		struct pier_py_channel *channel = ring->channels[i - 1];

		if (pier_ring_uses(ring->ring, channel->channel))
			continue;
		channel->queue->users--;
		ring->channels[i - 1] = ring->channels[--ring->channel_count];
		ring->channels[ring->channel_count] = channel;
	}
	return count;
}

void pier_py_ring_leave_channels(struct pier_py_ring *ring,
				 struct pier_py_sources *sources, bool waited)
{
	uint32_t count;

	for (uint32_t i = 0; sources && i < sources->channel_count; i++) {
		if (pier_ring_uses(ring->ring, sources->channels[i]->channel))
			add_channel(ring, sources->channels[i]);
	}
	count = remove_channels(ring);
	pier_py_queues_release(ring->queues, ring->queue_count);
	if (waited)
		pier_py_queues_wake(ring->queues, ring->queue_count);
	/* Nobody has their locks any more, so they may be deleted. */
	for (uint32_t i = ring->channel_count; i < count; i++)
		Py_DECREF((PyObject *)ring->channels[i]);
}

void pier_py_ring_leave(struct pier_py_ring *ring, struct pier_py_sources *sources,
			bool waited)
{
	pier_py_ring_leave_channels(ring, sources, waited);
	pier_py_lock_release(&ring->lock);
}
