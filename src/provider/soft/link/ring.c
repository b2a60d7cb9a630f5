/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include <linux/dma-buf.h>

#include "provider/soft/soft.h"

enum {
	/* So that the other end works on one part while we copy the next. */
	COPY_BYTES = SOFT_RING_SIZE / 3
};

static struct soft_lane *create_lane(struct soft_segment *segment, int out, int in)
{
	struct soft_lane *lane = calloc(1, sizeof(*lane));

	if (!lane) {
		pier_soft_drop_segment(segment);
		return NULL;
	}
	lane->segment = segment;
	lane->out = &segment->shared->halves[out];
	lane->in = &segment->shared->halves[in];
	pier_list_init(&lane->hot);
	for (int i = 0; i < SOFT_MAX_GRANTS; i++)
		pier_list_init(&lane->given[i].of_mr);
	return lane;
}

struct soft_lane *pier_soft_create_lane(struct soft_segment *segment, int side)
{
	return segment ? create_lane(segment, side, 1 - side) : NULL;
}

struct soft_lane *pier_soft_create_loop(struct soft_segment *segment)
{
	return segment ? create_lane(segment, 0, 0) : NULL;
}

void pier_soft_free_lane(struct soft_lane *lane)
{
	if (!lane)
		return;
	pier_soft_drop_held(lane);
	for (int i = 0; i < lane->fd_count; i++)
		pier_soft_close_foreign(lane->fds[i]);
	pier_soft_drop_segment(lane->segment);
	free(lane);
}

/* The bytes of a ring from `position` on, to its end at most. */
static struct soft_extent extent_at(const struct soft_lane *lane,
				    const struct soft_half *half, uint64_t position,
				    size_t length)
{
	struct soft_shared *shared = lane->segment->shared;
	uint64_t in_ring = position % SOFT_RING_SIZE;
	uint64_t offset = SOFT_RINGS_OFFSET + in_ring +
			  (uint64_t)(half - shared->halves) * SOFT_RING_SIZE;

	return (struct soft_extent){
		.memory = (char *)shared + offset,
		.fd = lane->segment->fd,
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
static ssize_t copy_parts(struct soft_lane *lane, const struct soft_half *half,
			  uint64_t position, size_t length, struct soft_vector *vector)
{
	size_t done = 0;

	while (done < length && vector->first < vector->count) {
		struct soft_extent extent = extent_at(lane, half, position + done,
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

static ssize_t copy(struct soft_lane *lane, const struct soft_half *half,
		    uint64_t position, size_t length, struct soft_vector *vector)
{
	ssize_t copied;

	pier_soft_vector_sync(vector, DMA_BUF_SYNC_START);
	copied = copy_parts(lane, half, position, length, vector);
	pier_soft_vector_sync(vector, DMA_BUF_SYNC_END);
	return copied;
}

/*
 * No wake-up is lost: we publish the position and then look whether the reader sleeps;
 * the reader says that it sleeps and then looks at the position (pier_soft_cool()).
 * All four are sequentially consistent, so one of the two sees the other. The byte on
 * the socket stays there until it is read, and the reader, which waits for events of
 * that socket, gets one for it.
 */
ssize_t pier_soft_lane_send(struct soft_qp *qp, struct soft_vector *vector)
{
	struct soft_lane *lane = qp->link.lane;
	uint64_t used = lane->put -
			atomic_load_explicit(&lane->out->tail, memory_order_acquire);
	ssize_t sent;

	if (used >= SOFT_RING_SIZE) {
		errno = used == SOFT_RING_SIZE ? EAGAIN : EPROTO;
		return -1;
	}
	used = SOFT_RING_SIZE - used;
	sent = copy(lane, lane->out, lane->put, used < COPY_BYTES ? used : COPY_BYTES,
		    vector);
	if (sent > 0) {
		lane->put += (uint64_t)sent;
		atomic_store(&lane->out->head, lane->put);
		pier_soft_wake(qp, &lane->out->reader_sleeps);
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

/* The same for a writer that waits for room; see pier_soft_lane_send(). */
ssize_t pier_soft_lane_receive(struct soft_qp *qp, struct soft_vector *vector)
{
	struct soft_lane *lane = qp->link.lane;
	uint64_t there = atomic_load_explicit(&lane->in->head, memory_order_acquire) -
			 lane->taken;
	ssize_t received;

	if (there == 0)
		return nothing_there(&qp->link);
	if (there > SOFT_RING_SIZE) {
		errno = EPROTO;
		return -1;
	}
	received = copy(lane, lane->in, lane->taken,
			there < COPY_BYTES ? there : COPY_BYTES, vector);
	if (received > 0) {
		lane->taken += (uint64_t)received;
		atomic_store(&lane->in->tail, lane->taken);
		pier_soft_wake(qp, &lane->in->writer_sleeps);
	}
	return received;
}
