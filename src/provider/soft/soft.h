/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_SOFT_H
#define PIER_SOFT_SOFT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "core/list.h"
#include "engine.h"
#include "provider/soft/connect/node.h"
#include "provider/soft/regions/keys.h"

/*
 * A NIC in software. One *engine* per opened context plays the hardware; each connected
 * queue pair has one *link*, a byte stream to its peer. Calls go down only, in this
 * order:
 *
 *	device.c	  the provider's table
 *	queues/		  the objects of verbs. At the top post.c and poll.c, which
 *			  applications call; then pass.c, which gives turns; then
 *			  requester and responder; at the bottom qp.h, cq.h and srq.h
 *	soft.h		  the result of ibv_open_device()
 *	connect/	  how a link comes to be
 *	link/		  streams, shared FIFOs and grants; neither of the two knows
 *			  queue pairs
 *	regions/	  memory
 *	engine.c	  lock, whose turn it is, watched fds, timer
 *
 * Where a lower layer needs an upper one, it calls it through engine.ops.
 *
 * Locks, outer first; a thread that holds one takes only those after it:
 *
 *	builder->lock	  posting requests one member at a time
 *	qp->ibv.mutex	  one verb at a time on a queue pair
 *	registry	  which contexts this process has open
 *	engine->lock	  everything the engine touches: links, what was sent and
 *			  received, the tables of regions and queue pairs
 *	sq.lock, rq.lock  posting; the state is written with both held
 *	srq->lock	  posting to a shared receive queue, and taking from it
 *	cq->lock	  the FIFO of completions
 *	channel->lock	  the queue of completion events
 *	events.lock	  the queue of asynchronous events
 */

struct soft_context {
	struct soft_engine engine;
	struct soft_mr_table mrs;
	struct soft_node node;
	uint32_t next_qp;
	uint16_t qp_generation;
};

/* The asynchronous events of a handle; `lock` is taken last. */
struct soft_events {
	pthread_mutex_t lock;
	pthread_cond_t acknowledged;
	struct pier_list sources; /* with events that nobody has taken yet */
};

/*
 * The result of ibv_open_device(). Programs of plain verbs expect that all contexts of a
 * device have one GID and one space of QPNs, so the handles of such a process share one
 * soft_context. Any other handle has its own.
 */
struct soft_handle {
	struct verbs_context verbs;
	struct soft_context *context;
	struct soft_events events;
	atomic_uint users; /* PDs, CQs, channels, and the program until it closes it */
	void (*close)(struct soft_handle *handle); /* without users */
};

static inline struct soft_handle *soft_handle(struct ibv_context *context)
{
	return pier_container_of(context, struct soft_handle, verbs.context);
}

static inline void pier_soft_use_handle(struct ibv_context *context)
{
	atomic_fetch_add(&soft_handle(context)->users, 1);
}

/* Without locks: the last user closes the handle. */
static inline void pier_soft_leave_handle(struct ibv_context *context)
{
	struct soft_handle *handle = soft_handle(context);

	if (atomic_fetch_sub(&handle->users, 1) == 1)
		handle->close(handle);
}

static inline struct soft_context *soft_context(struct ibv_context *context)
{
	return soft_handle(context)->context;
}

#endif
