/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>

#include "polling.h"
#include "control.h"
#include "provider/soft/engine.h"
#include "provider/soft/soft.h"
#include "ring.h"
#include "shared_memory.h"

/*
 * The engine polls the rings with recent activity: that costs no system call, and for a
 * quiet ring no cache miss. For all other rings the flags in the shared memory say that
 * this end sleeps, and the peer sends a byte over the socket. So an idle link adds
 * nothing to the cost of a poll.
 */

enum {
	MAX_POLLED = 64,
	/* How long the thread goes on polling before it sleeps. */
	SPIN_NANOSECONDS = 20000
};

static bool ring_has_bytes(const struct soft_ring *ring)
{
	return atomic_load(&ring->in->head) != ring->taken;
}

static bool ring_has_room(const struct soft_ring *ring)
{
	return ring->put - atomic_load(&ring->out->tail) != SOFT_RING_SIZE;
}

/* Whether there is something that the link does not know yet. */
static bool find_ring_activity(struct soft_qp *qp)
{
	struct soft_link *link = &qp->link;
	bool bytes = !link->readable && ring_has_bytes(link->ring);
	bool room = !link->writable && ring_has_room(link->ring);

	link->readable |= bytes;
	link->writable |= room;
	return bytes || room;
}

void pier_soft_wake_peer(struct soft_qp *qp, _Atomic uint32_t *sleeps)
{
	/* Read before it is written: the cache line mostly stays where it is. */
	if (atomic_load(sleeps) && atomic_exchange(sleeps, 0))
		pier_soft_send_wake(qp);
}

void pier_soft_stop_polling(struct soft_qp *qp)
{
	struct soft_engine *engine = &soft_context_of(qp)->engine;
	struct soft_ring *ring = qp->link.ring;

	pier_list_remove(&ring->polled);
	engine->polled_count -= ring->is_polled;
	ring->is_polled = false;
}

static void stop_polling_oldest(struct soft_engine *engine)
{
	struct soft_ring *oldest = NULL;

	pier_list_for_each(link, &engine->polled) {
		struct soft_ring *ring = pier_container_of(link, struct soft_ring,
							   polled);

		if (!oldest || ring->last_active < oldest->last_active)
			oldest = ring;
	}
	assert(oldest);
	/* If there is something in it, it sleeps after its turn. */
	if (!pier_soft_sleep_on_ring(oldest->qp))
		pier_soft_activate(oldest->qp);
}

void pier_soft_start_polling(struct soft_qp *qp)
{
	struct soft_engine *engine = &soft_context_of(qp)->engine;
	struct soft_ring *ring = qp->link.ring;

	ring->last_active = engine->now;
	if (ring->is_polled)
		return;
	if (engine->polled_count >= MAX_POLLED)
		stop_polling_oldest(engine);
	atomic_store_explicit(&ring->in->reader_sleeps, 0, memory_order_relaxed);
	atomic_store_explicit(&ring->out->writer_sleeps, 0, memory_order_relaxed);
	pier_list_append(&engine->polled, &ring->polled);
	ring->is_polled = true;
	engine->polled_count++;
}

/* pier_soft_ring_send() explains why no wake-up is lost. */
bool pier_soft_sleep_on_ring(struct soft_qp *qp)
{
	struct soft_ring *ring = qp->link.ring;

	atomic_store(&ring->in->reader_sleeps, 1);
	if (!qp->link.writable)
		atomic_store(&ring->out->writer_sleeps, 1);
	if (find_ring_activity(qp)) {
		atomic_store_explicit(&ring->in->reader_sleeps, 0, memory_order_relaxed);
		atomic_store_explicit(&ring->out->writer_sleeps, 0, memory_order_relaxed);
		return false;
	}
	pier_soft_stop_polling(qp);
	return true;
}

bool pier_soft_sleep_on_rings(struct soft_context *context)
{
	struct soft_engine *engine = &context->engine;
	bool quiet = true;

	pier_list_for_each_safe(link, next, &engine->polled) {
		struct soft_ring *ring = pier_container_of(link, struct soft_ring,
							   polled);

		if (!pier_soft_sleep_on_ring(ring->qp)) {
			pier_soft_activate(ring->qp);
			quiet = false;
		}
	}
	return quiet;
}

void pier_soft_poll_rings(struct soft_context *context, uint64_t now)
{
	struct soft_engine *engine = &context->engine;

	pier_list_for_each(link, &engine->polled) {
		struct soft_ring *ring = pier_container_of(link, struct soft_ring,
							   polled);

		if (!find_ring_activity(ring->qp))
			continue;
		ring->last_active = now;
		engine->spin_until = now + SPIN_NANOSECONDS;
		pier_soft_activate(ring->qp);
	}
}
