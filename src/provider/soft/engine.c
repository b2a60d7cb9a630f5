/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <time.h>

#include "core/log.h"
#include "soft.h"

enum {
	EVENTS_PER_PASS = 32,
	EVENT_SHIFT = 56,
	STOPPED_NANOSECONDS = 250000000,
	/* How often who polls asks the kernel when rings bring the news. */
	LOOK_NANOSECONDS = 10000,
	/* How often who posts looks around, who may find something at each poll. */
	POST_LOOK_NANOSECONDS = 100000
};

#define EVENT_ID_MASK ((UINT64_C(1) << EVENT_SHIFT) - 1)

uint64_t pier_soft_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void pier_soft_activate(struct soft_qp *qp)
{
	if (pier_list_empty(&qp->active))
		pier_list_append(&soft_context_of(qp)->engine.active, &qp->active);
}

int pier_soft_watch(struct soft_context *context, int fd, uint32_t events,
		    enum soft_event event, uint64_t id)
{
	struct epoll_event watched = {
		.events = events,
		.data.u64 = (uint64_t)event << EVENT_SHIFT | id,
	};

	if (epoll_ctl(context->engine.epoll_fd, EPOLL_CTL_ADD, fd, &watched) < 0)
		return -errno;
	return 0;
}

/*
 * Said explicitly, because a copy of the fd in a forked child would keep a
 * closed fd in the epoll set.
 */
void pier_soft_unwatch(struct soft_context *context, int fd)
{
	epoll_ctl(context->engine.epoll_fd, EPOLL_CTL_DEL, fd, NULL);
}

/* The timer rings at or before every deadline; each looks at its own clock. */
void pier_soft_arm_timer(struct soft_context *context, uint64_t when)
{
	struct soft_engine *engine = &context->engine;
	struct itimerspec setting = { 0 };

	if (when >= engine->deadline)
		return;
	engine->deadline = when;
	setting.it_value.tv_sec = (time_t)(when / 1000000000u);
	setting.it_value.tv_nsec = (long)(when % 1000000000u);
	timerfd_settime(engine->timer_fd, TFD_TIMER_ABSTIME, &setting, NULL);
}

static void check_timers(struct soft_context *context)
{
	struct soft_engine *engine = &context->engine;
	bool stopped;

	engine->now = pier_soft_now();
	if (engine->now < engine->deadline)
		return;
	/* Later than a busy machine explains: we slept, the peer was not silent. */
	stopped = engine->now - engine->deadline > STOPPED_NANOSECONDS;
	engine->deadline = SOFT_NEVER;
	for (uint32_t i = 0; i < SOFT_MAX_QP; i++) {
		struct soft_qp *qp = context->qps[i];

		if (!qp)
			continue;
		if (stopped)
			qp->last_progress = engine->now;
		pier_soft_check_timers(qp);
	}
	pier_soft_check_pending(context);
}

void pier_soft_empty_doorbells(struct soft_context *context)
{
	struct soft_qp *qp = atomic_exchange(&context->engine.rung, NULL);

	while (qp) {
		struct soft_qp *next = qp->next_rung;

		/*
		 * From here on a poster pushes it again, so `next` was read first.
		 * Read-modify-write, so that what the last poster queued is seen
		 * who found the bell rung and did not push.
		 */
		atomic_exchange(&qp->rung, false);
		pier_soft_activate(qp);
		qp = next;
	}
}

/* Not closing(): then it does not matter any more what the peer says. */
static void hear(struct soft_qp *qp)
{
	pier_soft_heat(qp);
	if (pier_soft_hear(qp))
		return;
	pier_warning("soft0: QP %#x: nonsense on the socket of QP %#x", qp->ibv.qp_num,
		     qp->attr.dest_qp_num);
	pier_soft_lose_link(qp);
}

static void dispatch_qp(struct soft_context *context, uint64_t id, uint32_t events)
{
	struct soft_qp *qp = context->qps[id % SOFT_MAX_QP];

	if (!qp || !pier_soft_link_open(&qp->link) || qp->link.serial != id / SOFT_MAX_QP)
		return;
	if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
		qp->link.readable = true;
	if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
		qp->link.hung_up = true;
	if (events & (EPOLLOUT | EPOLLERR))
		qp->link.writable = true;
	pier_soft_activate(qp);
	if (qp->link.lane)
		hear(qp);
}

enum soft_event pier_soft_event_kind(const struct epoll_event *event)
{
	return (enum soft_event)(event->data.u64 >> EVENT_SHIFT);
}

static void dispatch(struct soft_context *context, const struct epoll_event *event)
{
	uint64_t id = event->data.u64 & EVENT_ID_MASK;

	switch (pier_soft_event_kind(event)) {
	case SOFT_EVENT_QP:
		dispatch_qp(context, id, event->events);
		break;
	case SOFT_EVENT_LISTENER:
		pier_soft_accept(context);
		break;
	case SOFT_EVENT_PENDING:
		pier_soft_continue_pending(context, id);
		break;
	case SOFT_EVENT_WAKE:
	case SOFT_EVENT_TIMER:
		break;
	}
}

/* One turn for one queue pair: bounded, and it goes back in line for more. */
static void progress(struct soft_qp *qp)
{
	pier_list_remove(&qp->active);
	if (qp->link.readable)
		pier_soft_receive(qp);
	pier_soft_run_local(qp);
	if (qp->link.writable && pier_soft_transmit(qp))
		pier_soft_activate(qp);
	if (qp->ibv.state == IBV_QPS_ERR) {
		pier_soft_flush_sends(qp);
		pier_soft_flush_recvs(qp);
	}
	pier_soft_arm_timers(qp);
	if (qp->link.readable)
		pier_soft_activate(qp);
}

/* Each queue pair that is in line now gets one turn, or only the first one. */
static void run_active(struct soft_context *context, bool only_first)
{
	struct pier_list *line = &context->engine.active;
	struct pier_list *mark = &context->engine.mark;

	if (pier_list_empty(line))
		return;
	/* Those that come back stand behind this mark. */
	pier_list_append(line, mark);
	while (line->next != mark) {
		progress(pier_container_of(line->next, struct soft_qp, active));
		if (only_first)
			break;
	}
	pier_list_remove(mark);
}

void pier_soft_pass(struct soft_context *context, const struct epoll_event *events,
		    int count)
{
	check_timers(context);
	pier_soft_empty_doorbells(context);
	for (int i = 0; i < count; i++)
		dispatch(context, &events[i]);
	run_active(context, false);
}

static bool has_work(const struct soft_engine *engine)
{
	return !pier_list_empty(&engine->active);
}

/* The thread is not to sleep while a ring is to be looked at. */
static bool needs_thread(const struct soft_engine *engine)
{
	return has_work(engine) || !pier_list_empty(&engine->hot);
}

static void wake_thread(struct soft_engine *engine)
{
	engine->blocking = false;
	eventfd_write(engine->wake_fd, 1);
}

/*
 * A poster that found the lock taken has left its doorbell behind; whoever
 * unlocks looks for it. The read is a read-modify-write on purpose: either it
 * sees the poster's push, or it comes before that push in the order of all
 * writes to `rung`; then the unlocking happens before the poster's trylock,
 * which cannot fail because of us.
 */
static bool doorbells_rung(struct soft_engine *engine)
{
	struct soft_qp *none = NULL;

	return !atomic_compare_exchange_strong(&engine->rung, &none, NULL);
}

void pier_soft_unlock(struct soft_context *context)
{
	struct soft_engine *engine = &context->engine;

	for (;;) {
		if (engine->blocking && needs_thread(engine))
			wake_thread(engine);
		pthread_mutex_unlock(&engine->lock);
		if (engine->stepped || !doorbells_rung(engine))
			return;
		if (pthread_mutex_trylock(&engine->lock) != 0)
			return;
		pier_soft_pass(context, NULL, 0);
	}
}

void pier_soft_lock(struct soft_context *context)
{
	atomic_fetch_add(&context->engine.waiters, 1);
	pthread_mutex_lock(&context->engine.lock);
	atomic_fetch_sub(&context->engine.waiters, 1);
}

/* At rings, and from time to time at what the kernel has. */
static void look_around(struct soft_context *context)
{
	struct soft_engine *engine = &context->engine;
	struct epoll_event events[EVENTS_PER_PASS];
	uint64_t now = pier_soft_now();
	int count = 0;

	atomic_fetch_add_explicit(&engine->looks, 1, memory_order_relaxed);
	pier_soft_look(context, now);
	if (engine->socket_links > 0 || now - engine->looked >= LOOK_NANOSECONDS) {
		engine->looked = now;
		count = epoll_wait(engine->epoll_fd, events, EVENTS_PER_PASS, 0);
	}
	if (count > 0 || has_work(engine))
		pier_soft_pass(context, events, count);
}

void pier_soft_ring(struct soft_qp *qp)
{
	struct soft_context *context = soft_context_of(qp);
	struct soft_engine *engine = &context->engine;
	struct soft_qp *top = atomic_load(&engine->rung);

	if (!atomic_exchange(&qp->rung, true)) {
		do {
			qp->next_rung = top;
		} while (!atomic_compare_exchange_weak(&engine->rung, &top, qp));
	}
	if (engine->stepped || pthread_mutex_trylock(&engine->lock) != 0)
		return;
	pier_soft_pass(context, NULL, 0);
	if (engine->now - engine->looked >= POST_LOOK_NANOSECONDS)
		look_around(context);
	pier_soft_unlock(context);
}

/* Of two that count at once one may be forgotten, or many: it is a hint. */
void pier_soft_count_poll(struct soft_context *context)
{
	atomic_uint *polls = &context->engine.polls;

	atomic_store_explicit(polls,
			      atomic_load_explicit(polls, memory_order_relaxed) + 1,
			      memory_order_relaxed);
}

void pier_soft_poll_engine(struct soft_context *context)
{
	struct soft_engine *engine = &context->engine;

	if (engine->stepped || atomic_load(&engine->waiters) > 0 ||
	    pthread_mutex_trylock(&engine->lock) != 0)
		return;
	look_around(context);
	pier_soft_unlock(context);
}

/*
 * The clock tells what is due. Whether a timer has rung too depends on how fast this
 * process is, and steps must not.
 */
static int take_event(const struct soft_engine *engine, struct epoll_event *ret_event)
{
	int count;

	do
		count = epoll_wait(engine->epoll_fd, ret_event, 1, 0);
	while (count > 0 && pier_soft_event_kind(ret_event) == SOFT_EVENT_TIMER);
	return count;
}

bool pier_soft_step(struct ibv_context *ibv_context)
{
	struct soft_context *context = soft_context(ibv_context);
	struct epoll_event event;
	bool worked;
	int count;

	pier_soft_lock(context);
	check_timers(context);
	pier_soft_empty_doorbells(context);
	pier_soft_look(context, context->engine.now);
	count = take_event(&context->engine, &event);
	if (count > 0)
		dispatch(context, &event);
	worked = count > 0 || has_work(&context->engine);
	run_active(context, true);
	pier_soft_unlock(context);
	return worked;
}
