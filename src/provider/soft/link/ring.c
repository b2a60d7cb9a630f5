/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include <linux/dma-buf.h>

#include "ring.h"
#include "credentials.h"
#include "polling.h"
#include "provider/soft/regions/copy.h"
#include "provider/soft/regions/vector.h"
#include "provider/soft/soft.h"
#include "shared_memory.h"

enum {
	/* So that the other end works on one part while we copy the next. */
	COPY_BYTES = SOFT_RING_SIZE / 3
};

static struct soft_ring *create_ring(struct soft_shared_memory *memory, int out, int in)
{
	struct soft_ring *ring = calloc(1, sizeof(*ring));

	if (!ring) {
		pier_soft_release_shared_memory(memory);
		return NULL;
	}
	ring->memory = memory;
	ring->out = &memory->layout->directions[out];
	ring->in = &memory->layout->directions[in];
	pier_list_init(&ring->polled);
	for (int i = 0; i < SOFT_MAX_GRANTS; i++)
		pier_list_init(&ring->given[i].of_mr);
	return ring;
}

struct soft_ring *pier_soft_create_ring(struct soft_shared_memory *memory, int side)
{
	return memory ? create_ring(memory, side, 1 - side) : NULL;
}

struct soft_ring *pier_soft_create_loop_ring(struct soft_shared_memory *memory)
{
	return memory ? create_ring(memory, 0, 0) : NULL;
}

void pier_soft_free_ring(struct soft_ring *ring)
{
	if (!ring)
		return;
	for (int i = 0; i < ring->fd_count; i++)
		pier_soft_close_foreign(ring->fds[i]);
	pier_soft_release_shared_memory(ring->memory);
	free(ring);
}

/* The bytes of a ring from `position` on, to its end at most. */
static struct soft_extent extent_at(const struct soft_ring *ring,
				    const struct soft_direction *half, uint64_t position,
				    size_t length)
{
	struct soft_ring_layout *shared = ring->memory->layout;
	uint64_t in_ring = position % SOFT_RING_SIZE;
	uint64_t offset = SOFT_RINGS_OFFSET + in_ring +
			  (uint64_t)(half - shared->directions) * SOFT_RING_SIZE;

	return (struct soft_extent){
		.memory = (char *)shared + offset,
		.fd = ring->memory->fd,
		.offset = offset,
		.length = length < SOFT_RING_SIZE - in_ring ? length
							    : SOFT_RING_SIZE - in_ring,
	};
}

/*
 * -1: memory of the vector has vanished. What is sent goes as a whole or not at all,
 * as in a packet of a socket, so that no header leaves without what it announces; of
 * what is received, all before the gap is there.
 */
static ssize_t copy_parts(struct soft_ring *ring, const struct soft_direction *half,
			  uint64_t position, size_t length, struct soft_vector *vector)
{
	size_t done = 0;

	while (done < length && vector->first < vector->count) {
		struct soft_extent extent = extent_at(ring, half, position + done,
						      length - done);
		ssize_t copied = pier_soft_copy(vector, &extent);
		bool gap = copied < (ssize_t)extent.length &&
			   vector->first < vector->count;

		if (copied > 0)
			done += (size_t)copied;
		if (gap && (!vector->writes || done == 0)) {
			errno = EFAULT;
			return -1;
		}
		if (gap)
			break;
	}
	return (ssize_t)done;
}

static ssize_t copy(struct soft_ring *ring, const struct soft_direction *half,
		    uint64_t position, size_t length, struct soft_vector *vector)
{
	ssize_t copied;

	pier_soft_vector_sync(vector, DMA_BUF_SYNC_START);
	copied = copy_parts(ring, half, position, length, vector);
	pier_soft_vector_sync(vector, DMA_BUF_SYNC_END);
	return copied;
}

/*
 * No wake-up is lost: we publish the position and then look whether the reader sleeps;
 * the reader says that it sleeps and then looks at the position
 * (pier_soft_sleep_on_ring()). All four are sequentially consistent, so one of the two
 * sees the other. The byte on the socket stays there until it is read, and the reader,
 * which waits for events of that socket, gets one for it.
 */
ssize_t pier_soft_ring_send(struct soft_qp *qp, struct soft_vector *vector)
{
	struct soft_ring *ring = qp->link.ring;
	uint64_t used = ring->put -
			atomic_load_explicit(&ring->out->tail, memory_order_acquire);
	ssize_t sent;

	if (used >= SOFT_RING_SIZE) {
		errno = used == SOFT_RING_SIZE ? EAGAIN : EPROTO;
		return -1;
	}
	used = SOFT_RING_SIZE - used;
	sent = copy(ring, ring->out, ring->put, used < COPY_BYTES ? used : COPY_BYTES,
		    vector);
	if (sent > 0) {
		ring->put += (uint64_t)sent;
		atomic_store(&ring->out->head, ring->put);
		pier_soft_wake_peer(qp, &ring->out->reader_sleeps);
	}
	return sent;
}

/* What was said before the hang-up is all in the ring when we hear of that. */
static ssize_t nothing_there(const struct soft_link *link)
{
	if (link->hung_up)
		return 0;
	errno = EAGAIN;
	return -1;
}

/* The same for a writer that waits for room; see pier_soft_ring_send(). */
ssize_t pier_soft_ring_receive(struct soft_qp *qp, struct soft_vector *vector)
{
	struct soft_ring *ring = qp->link.ring;
	uint64_t there = atomic_load_explicit(&ring->in->head, memory_order_acquire) -
			 ring->taken;
	ssize_t received;

	if (there == 0)
		return nothing_there(&qp->link);
	if (there > SOFT_RING_SIZE) {
		errno = EPROTO;
		return -1;
	}
	received = copy(ring, ring->in, ring->taken,
			there < COPY_BYTES ? there : COPY_BYTES, vector);
	if (received > 0) {
		ring->taken += (uint64_t)received;
		atomic_store(&ring->in->tail, ring->taken);
		pier_soft_wake_peer(qp, &ring->in->writer_sleeps);
	}
	return received;
}
