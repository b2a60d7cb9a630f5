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
	/* The other end works on one part while this one copies the next. */
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

/* The bytes of a ring from `position` on, up to its end. */
static struct soft_extent ring_extent(const struct soft_ring *ring,
				      const struct soft_direction *half,
				      uint64_t position, size_t length)
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
 * -1 with EFAULT: memory of the vector has vanished. A send copies everything or
 * nothing, as a packet of a socket, so that no header is sent without its payload. A
 * receive delivers everything before the gap.
 */
static ssize_t copy_through_ring(struct soft_ring *ring,
				 const struct soft_direction *half, uint64_t position,
				 size_t length, struct soft_vector *vector)
{
	size_t done = 0;

	while (done < length && vector->first < vector->count) {
		struct soft_extent extent = ring_extent(ring, half, position + done,
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

static ssize_t copy_bracketed(struct soft_ring *ring, const struct soft_direction *half,
			      uint64_t position, size_t length,
			      struct soft_vector *vector)
{
	ssize_t copied;

	pier_soft_vector_sync(vector, DMA_BUF_SYNC_START);
	copied = copy_through_ring(ring, half, position, length, vector);
	pier_soft_vector_sync(vector, DMA_BUF_SYNC_END);
	return copied;
}

/*
 * Order, by the memory model of C11 (5.1.2.4, 7.17.3). Each position has one writer.
 *
 * Bytes: the store of `head` releases the bytes before it, and the reader's load of
 * `head` acquires them before it copies. The reader's copies out of the ring are before
 * its store of `tail` (release), and the writer loads `tail` (acquire) before it
 * overwrites them. Copies by a system call are made by the same thread in between.
 *
 * No wake-up is lost. The writer publishes its position and then reads whether the
 * reader sleeps. The reader sets that it sleeps and then reads the position
 * (pier_soft_sleep_on_ring()). All four are sequentially consistent, so they have one
 * total order, in which one of the two reads comes after the other's store: acquire and
 * release alone would allow both to read the old value. A flag that is cleared late
 * (relaxed) costs at most a wake-up too many. The byte on the socket stays there until
 * it is read, and raises an event at the reader, which watches that socket.
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
	sent = copy_bracketed(ring, ring->out, ring->put,
			      used < COPY_BYTES ? used : COPY_BYTES, vector);
	if (sent > 0) {
		ring->put += (uint64_t)sent;
		atomic_store(&ring->out->head, ring->put);
		pier_soft_wake_peer(qp, &ring->out->reader_sleeps);
	}
	return sent;
}

/* After a hang-up everything that the peer sent is in the ring already. */
static ssize_t receive_nothing(const struct soft_link *link)
{
	if (link->hung_up)
		return 0;
	errno = EAGAIN;
	return -1;
}

/* The same for a writer that waits for room: pier_soft_ring_send(). */
ssize_t pier_soft_ring_receive(struct soft_qp *qp, struct soft_vector *vector)
{
	struct soft_ring *ring = qp->link.ring;
	uint64_t there = atomic_load_explicit(&ring->in->head, memory_order_acquire) -
			 ring->taken;
	ssize_t received;

	if (there == 0)
		return receive_nothing(&qp->link);
	if (there > SOFT_RING_SIZE) {
		errno = EPROTO;
		return -1;
	}
	received = copy_bracketed(ring, ring->in, ring->taken,
				  there < COPY_BYTES ? there : COPY_BYTES, vector);
	if (received > 0) {
		ring->taken += (uint64_t)received;
		atomic_store(&ring->in->tail, ring->taken);
		pier_soft_wake_peer(qp, &ring->in->writer_sleeps);
	}
	return received;
}
