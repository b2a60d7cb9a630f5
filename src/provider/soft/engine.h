/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_ENGINE_H
#define PIER_SOFT_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

#include <infiniband/verbs.h>

#include "region.h"
#include "core/list.h"

/* What plays the hardware: one turn for each queue pair that has something to do. */

struct soft_context;
struct soft_qp;

struct soft_engine {
	pthread_mutex_t lock;
	atomic_uint waiters; /* in pier_soft_lock(); pollers give way to them */
	pthread_t thread;
	bool stepped; /* no thread and no progress but by pier_soft_step() */
	bool threaded;
	bool stop;
	bool blocking; /* the thread sleeps, or is about to, until an event */
	int epoll_fd, wake_fd, timer_fd;
	uint64_t deadline; /* when the timer is set to ring */
	uint64_t now;	   /* read once a pass */
	_Atomic(struct soft_qp *) rung;
	atomic_uint polls; /* by applications; while it moves the thread rests */
	atomic_uint seen_polls;
	atomic_uint looks; /* by applications, for what peers and the kernel bring */
	atomic_bool resting;
	struct pier_list active, mark;
	struct pier_list hot; /* lanes that are looked at; hot.c */
	uint32_t hot_count;
	uint32_t socket_links; /* links without a lane */
	uint64_t spin_until;   /* the thread does not sleep before */
	uint64_t looked;       /* for events, by an application */
	uint64_t next_serial;
	uint8_t *sink;		    /* where unwanted bytes go */
	struct soft_extent staging; /* of seal.c, for one copy at a time */
};

/* thread.c */
int pier_soft_start_engine(struct soft_context *context, bool stepped);
void pier_soft_stop_engine(struct soft_context *context);

/* engine.c */
void pier_soft_lock(struct soft_context *context);
void pier_soft_unlock(struct soft_context *context);
void pier_soft_ring(struct soft_qp *qp);
/* Who asks for an event polls no more: the thread's rest is over. */
void pier_soft_end_rest(struct soft_context *context);
void pier_soft_count_poll(struct soft_context *context);
/* After an empty poll: makes progress if nobody else does. */
void pier_soft_poll_engine(struct soft_context *context);
/* With the engine locked. */
void pier_soft_pass(struct soft_context *context, const struct epoll_event *events,
		    int count);
void pier_soft_activate(struct soft_qp *qp);
void pier_soft_arm_timer(struct soft_context *context, uint64_t when);
void pier_soft_empty_doorbells(struct soft_context *context);
uint64_t pier_soft_now(void);

enum soft_event {
	SOFT_EVENT_WAKE,
	SOFT_EVENT_TIMER,
	SOFT_EVENT_QP, /* id: serial of the link * SOFT_MAX_QP + index of the QP */
	SOFT_EVENT_LISTENER,
	SOFT_EVENT_PENDING /* id: generation << 8 | index */
};

enum soft_event pier_soft_event_kind(const struct epoll_event *event);
int pier_soft_watch(struct soft_context *context, int fd, uint32_t events,
		    enum soft_event event, uint64_t id);
void pier_soft_unwatch(struct soft_context *context, int fd);

/* For tests: no thread; nothing moves but by the step, one event at a time. */
struct ibv_context *pier_soft_open_stepped(void);
/* Whether anything happened. */
bool pier_soft_step(struct ibv_context *context);

#endif
