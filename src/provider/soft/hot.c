/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>

#include "soft.h"

/*
 * Which rings the engine looks at. Those where something stirred lately are *hot*: a
 * look at them costs no system call, and for a ring that is quiet no cache miss. To
 * the peers of all others the flags in the shared memory say that we sleep, and they
 * send a byte over the socket. So an idle link costs a poll nothing.
 */

enum {
	MAX_HOT = 64,
	/* How long the engine's thread looks on before it sleeps. */
	SPIN_NANOSECONDS = 20000
};

static bool has_bytes(const struct soft_lane *lane)
{
	return atomic_load(&lane->in->head) != lane->taken;
}

static bool has_room(const struct soft_lane *lane)
{
	return lane->put - atomic_load(&lane->out->tail) != SOFT_RING_SIZE;
}

/* Whether something is there that the link did not know of. */
static bool find_news(struct soft_qp *qp)
{
	struct soft_link *link = &qp->link;
	bool bytes = !link->readable && has_bytes(link->lane);
	bool room = !link->writable && has_room(link->lane);

	link->readable |= bytes;
	link->writable |= room;
	return bytes || room;
}

void pier_soft_wake(struct soft_qp *qp, _Atomic uint32_t *sleeps)
{
	/* Asked before it is written to: the cache line mostly stays where it is. */
	if (atomic_load(sleeps) && atomic_exchange(sleeps, 0))
		pier_soft_say_wake(qp);
}

void pier_soft_leave_hot(struct soft_qp *qp)
{
	struct soft_engine *engine = &soft_context_of(qp)->engine;
	struct soft_lane *lane = qp->link.lane;

	pier_list_remove(&lane->hot);
	engine->hot_count -= lane->is_hot;
	lane->is_hot = false;
}

static void cool_oldest(struct soft_engine *engine)
{
	struct soft_lane *oldest = NULL;

	pier_list_for_each(link, &engine->hot) {
		struct soft_lane *lane = pier_container_of(link, struct soft_lane, hot);

		if (!oldest || lane->stirred < oldest->stirred)
			oldest = lane;
	}
	assert(oldest);
	/* If it has something, it goes to sleep when it had its turn. */
	if (!pier_soft_cool(oldest->qp))
		pier_soft_activate(oldest->qp);
}

void pier_soft_heat(struct soft_qp *qp)
{
	struct soft_engine *engine = &soft_context_of(qp)->engine;
	struct soft_lane *lane = qp->link.lane;

	lane->stirred = engine->now;
	if (lane->is_hot)
		return;
	if (engine->hot_count >= MAX_HOT)
		cool_oldest(engine);
	atomic_store_explicit(&lane->in->reader_sleeps, 0, memory_order_relaxed);
	atomic_store_explicit(&lane->out->writer_sleeps, 0, memory_order_relaxed);
	pier_list_append(&engine->hot, &lane->hot);
	lane->is_hot = true;
	engine->hot_count++;
}

/* See pier_soft_lane_send() for why nothing is missed. */
bool pier_soft_cool(struct soft_qp *qp)
{
	struct soft_lane *lane = qp->link.lane;

	atomic_store(&lane->in->reader_sleeps, 1);
	if (!qp->link.writable)
		atomic_store(&lane->out->writer_sleeps, 1);
	if (find_news(qp)) {
		atomic_store_explicit(&lane->in->reader_sleeps, 0, memory_order_relaxed);
		atomic_store_explicit(&lane->out->writer_sleeps, 0, memory_order_relaxed);
		return false;
	}
	pier_soft_leave_hot(qp);
	return true;
}

bool pier_soft_cool_all(struct soft_context *context)
{
	struct soft_engine *engine = &context->engine;
	bool quiet = true;

	pier_list_for_each_safe(link, next, &engine->hot) {
		struct soft_lane *lane = pier_container_of(link, struct soft_lane, hot);

		if (!pier_soft_cool(lane->qp)) {
			pier_soft_activate(lane->qp);
			quiet = false;
		}
	}
	return quiet;
}

void pier_soft_look(struct soft_context *context, uint64_t now)
{
	struct soft_engine *engine = &context->engine;

	pier_list_for_each(link, &engine->hot) {
		struct soft_lane *lane = pier_container_of(link, struct soft_lane, hot);

		if (!find_news(lane->qp))
			continue;
		lane->stirred = now;
		engine->spin_until = now + SPIN_NANOSECONDS;
		pier_soft_activate(lane->qp);
	}
}
