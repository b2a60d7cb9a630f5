/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_ENGINE_H
#define PIER_SOFT_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "core/clock.h"
#include "core/list.h"

/*
 * The engine plays the hardware: it gives one turn to each queue pair that has something
 * to do. This is its lower half, which knows no queue pair: the lock, the list of those
 * with work, doorbells, watched fds and the timer. pass.h has the upper half.
 */

struct soft_engine;
struct soft_link;
struct soft_mr;

/* The calls of lower layers to upper ones. With the engine locked. */
struct soft_engine_ops {
	/* Gives everyone with work one turn. */
	void (*pass)(struct soft_engine *engine);
	/* Takes back what peers may do with the region by themselves. */
	void (*revoke_region)(struct soft_mr *mr);
	/* Closes a link whose peer is gone; its queue pair fails. */
	void (*lose_link)(struct soft_link *link);
};

/* Something that gets turns: a queue pair. */
struct soft_work {
	struct soft_engine *engine;
	struct pier_list active;
	/* The doorbell: posters push to a stack, which the engine empties. */
	atomic_bool rung;
	struct soft_work *next_rung;
};

struct soft_engine {
	const struct soft_engine_ops *ops;
	pthread_mutex_t lock;
	atomic_uint waiters; /* in pier_soft_lock(); pollers give way to them */
	pthread_t thread;
	bool stepped; /* no thread, and no progress except in pier_soft_step() */
	bool threaded;
	bool stop;
	bool blocking; /* the thread sleeps until an event, or is about to */
	int epoll_fd, wake_fd, timer_fd;
	uint64_t deadline; /* when the timer expires */
	uint64_t now;	   /* read once per pass */
	_Atomic(struct soft_work *) doorbells;
	atomic_uint polls; /* of CQs by applications; while it grows the thread pauses */
	atomic_uint seen_polls;
	atomic_uint app_passes; /* by applications, over FIFOs and fds */
	atomic_bool paused;
	/* Those with something to do, and the end of those that this pass serves. */
	struct pier_list active, pass_end;
	struct pier_list polled; /* shared FIFOs that the engine polls; link/fifo.c */
	uint32_t polled_count;
	uint32_t socket_links;	/* links without shared FIFOs */
	uint64_t last_datagram; /* when one was sent or received */
	uint64_t spin_until;	/* the thread does not sleep before */
	uint64_t last_epoll;	/* when an application last looked for events */
	uint64_t next_serial;
	uint8_t *sink; /* where unwanted bytes go */
};

/* With the engine unlocked. */
void pier_soft_lock(struct soft_engine *engine);
/* Serves doorbells that were rung while the lock was held. */
void pier_soft_unlock(struct soft_engine *engine);

/* All below: with the engine locked. */

/* Gives it a turn in the next pass. */
void pier_soft_activate(struct soft_work *work);
/* Activates whatever has had its doorbell rung. */
void pier_soft_collect_doorbells(struct soft_engine *engine);
/* The timer expires at `when` or before. */
void pier_soft_arm_timer(struct soft_engine *engine, uint64_t when);

enum soft_event {
	SOFT_EVENT_WAKE,
	SOFT_EVENT_TIMER,
	SOFT_EVENT_QP, /* id: serial of the link * SOFT_MAX_QP + index of the QP */
	SOFT_EVENT_LISTENER,
	SOFT_EVENT_PENDING, /* id: generation << 8 | index */
	SOFT_EVENT_DATAGRAM
};

/*
 * An event is for an id and not for a pointer: between epoll_wait(2) and the pass another
 * thread may have freed the object.
 */
int pier_soft_watch(struct soft_engine *engine, int fd, uint32_t events,
		    enum soft_event event, uint64_t id);
void pier_soft_unwatch(struct soft_engine *engine, int fd);
enum soft_event pier_soft_event_kind(const struct epoll_event *event);
uint64_t pier_soft_event_id(const struct epoll_event *event);

/* Whether anything waits for a turn. */
static inline bool pier_soft_has_work(const struct soft_engine *engine)
{
	return !pier_list_empty(&engine->active);
}

static inline uint64_t pier_soft_now(void)
{
	return (uint64_t)pier_device_now();
}

#endif
