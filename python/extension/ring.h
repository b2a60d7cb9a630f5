/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_RING_H
#define PIER_PY_RING_H

#include "buffer.h"
#include "channel.h"
#include "region.h"

/** pier.RingSources: remote vectors, and the channels to them. They never change. */
struct pier_py_sources {
	PyObject ob_base;
	PyObject *pairs; /* a tuple of (channel, remote), which keeps them */
	struct pier_ring_source *list;
	uint32_t count;
	struct pier_py_channel **channels; /* each once; borrowed */
	uint32_t channel_count;
};

/** pier.Ring */
struct pier_py_ring {
	PyObject ob_base;
	struct pier_py_lock lock;
	/* Calls of wake(), which needs no lock. */
	struct pier_py_use use;
	struct pier_ring *ring;
	struct pier_py_buffer *buffer;
	struct pier_py_region *region;
	struct pier_ring_attr attr;
	/*
	 * For each slot: 1 + its sequence while a RingSlot holds it. The thread that
	 * sets it to 0 releases the slot.
	 */
	atomic_ullong *tickets;
	/* The channels that fills use, each with a reference and a user of its queue. */
	struct pier_py_channel **channels;
	uint32_t channel_count, channel_room;
	/* Of the call: the queues whose locks it has; as much room. */
	struct pier_py_queue **queues;
	uint32_t queue_count;
	struct pier_ring_read *reads; /* of the call */
	uint32_t read_room;
	struct pier_ring_slot failed; /* what next() raised the error of */
};

extern PyTypeObject *pier_py_ring_type;

/**
 * Take the locks of an open ring, of the channels that it uses, and of those of the
 * sources of a call; NULL: none. Returns false with an exception.
 */
bool pier_py_ring_take(struct pier_py_ring *ring, struct pier_py_sources *sources);

/**
 * Find out which channels the ring uses now, and release the locks. Keeps an exception.
 *
 * waited  the call may have armed the channels
 */
void pier_py_ring_leave(struct pier_py_ring *ring, struct pier_py_sources *sources,
			bool waited);

#endif
