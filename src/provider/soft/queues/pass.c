/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "pass.h"
#include "core/error.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/thread.h"
#include "datagram.h"
#include "provider/soft/connect/listen.h"
#include "provider/soft/engine.h"
#include "provider/soft/link/attach.h"
#include "provider/soft/link/grant.h"
#include "provider/soft/link/link.h"
#include "provider/soft/link/fifo.h"
#include "provider/soft/soft.h"
#include "qp.h"
#include "requester.h"
#include "stream.h"

#define SECOND UINT64_C(1000000000)

enum {
	EVENTS_PER_PASS = 32,
	STALL_NANOSECONDS = 250000000,
	/*
	 * How often a polling thread asks the kernel while shared FIFOs bring the news.
	 */
	EPOLL_NANOSECONDS = 10000,
	/* After a datagram others are likely, which only the kernel announces. */
	DATAGRAM_NANOSECONDS = 1000000,
	/* A thread that posts may poll soon anyway, so it does so rarely. */
	POST_EPOLL_NANOSECONDS = 100000,
	/* How long the thread leaves the events to applications that poll. */
	PAUSE_MICROSECONDS = 500,
	POLLS_TO_PAUSE = 8,
	/* So long an application may hold the lock without a pass: it is copying. */
	PAUSES_WITHOUT_PASSES = 4
};

/* All retries of a NIC (IBTA 9.7.6.1.3). */
static uint64_t asked_limit(const struct soft_qp *qp)
{
	return qp->attr.timeout == 0
		       ? SOFT_NEVER
		       : (UINT64_C(4096) << qp->attr.timeout) * (qp->attr.retry_cnt + 1u);
}

/*
 * How long a peer may stay silent. The attributes are for round trips of hardware links;
 * a software peer also waits for a CPU.
 */
static uint64_t silence_limit(const struct soft_qp *qp)
{
	uint64_t asked = asked_limit(qp);
	uint64_t least = 2 * SECOND + qp->attr.retry_cnt * (SECOND * 2 / 5);

	return asked > least ? asked : least;
}

/* Without a link the peer is not there yet, and may take as long as a connect. */
static uint64_t current_silence_limit(const struct soft_qp *qp)
{
	uint64_t limit = silence_limit(qp);

	/* The link was lost, so the peer is gone and not only slow. */
	if (!pier_soft_link_open(&qp->link) && !pier_soft_is_unused(qp))
		return asked_limit(qp);
	if (!pier_soft_link_open(&qp->link) && limit < 5 * SECOND)
		limit = 5 * SECOND;
	/* The peer may wait for an answer that this end can no longer send. */
	if (qp->link.tx_broken && limit > 2 * SECOND)
		limit = 2 * SECOND;
	return limit;
}

static uint64_t silence_deadline(const struct soft_qp *qp)
{
	uint64_t limit = current_silence_limit(qp);

	return limit > SOFT_NEVER - qp->last_progress ? SOFT_NEVER
						      : qp->last_progress + limit;
}

static bool has_unfinished_sends(struct soft_qp *qp)
{
	return qp->ibv.qp_type == IBV_QPT_RC && qp->ibv.state == IBV_QPS_RTS &&
	       !qp->sq.rnr_until &&
	       qp->sq.done != atomic_load_explicit(&qp->sq.head, memory_order_relaxed);
}

static void arm_timers(struct soft_qp *qp)
{
	struct soft_context *context = soft_context_of(qp);
	bool busy = has_unfinished_sends(qp);

	if (busy && !qp->busy)
		qp->last_progress = context->engine.now;
	qp->busy = busy;
	if (busy)
		pier_soft_arm_timer(&context->engine, silence_deadline(qp));
	if (qp->sq.rnr_until)
		pier_soft_arm_timer(&context->engine, qp->sq.rnr_until);
	if (qp->link.closing)
		pier_soft_arm_timer(&context->engine, qp->link.closing_deadline);
}

static void check_timers(struct soft_qp *qp)
{
	uint64_t now = soft_context_of(qp)->engine.now;

	if (qp->sq.rnr_until && now >= qp->sq.rnr_until) {
		qp->sq.rnr_until = 0;
		qp->last_progress = now;
		pier_soft_activate(&qp->end.work);
	}
	if (qp->link.closing && now >= qp->link.closing_deadline)
		pier_soft_lose_link(qp);
	if (qp->busy && has_unfinished_sends(qp) && now >= silence_deadline(qp)) {
		pier_warning("soft0: QP %#x: QP %#x does not answer", qp->ibv.qp_num,
			     qp->attr.dest_qp_num);
		pier_soft_close_link(&qp->link);
		pier_soft_fail_qp(qp, IBV_WC_RETRY_EXC_ERR);
	}
	arm_timers(qp);
}

static void check_all_timers(struct soft_context *context)
{
	struct soft_engine *engine = &context->engine;
	bool stopped;

	engine->now = pier_soft_now();
	if (engine->now < engine->deadline)
		return;
	/* The timer is so late that this process was stopped: no peer was silent. */
	stopped = engine->now - engine->deadline > STALL_NANOSECONDS;
	engine->deadline = SOFT_NEVER;
	for (uint32_t i = 0; i < SOFT_MAX_QP; i++) {
		struct soft_qp *qp = pier_soft_qp_at(context, i);

		if (!qp)
			continue;
		if (stopped)
			qp->last_progress = engine->now;
		check_timers(qp);
	}
	pier_soft_check_pending(&context->node);
}

/* The peer may have sent control messages, or bytes through its fifo. */
static void receive_control(struct soft_qp *qp)
{
	pier_soft_start_polling(&qp->link);
	if (pier_soft_receive_control(&qp->link))
		return;
	pier_warning(
		"soft0: QP %#x: QP %#x sent control messages that violate the protocol",
		qp->ibv.qp_num, qp->attr.dest_qp_num);
	pier_soft_lose_link(qp);
}

static void dispatch_qp_event(struct soft_context *context, uint64_t id, uint32_t events)
{
	struct soft_qp *qp = pier_soft_qp_at(context, id % SOFT_MAX_QP);

	if (!qp || !pier_soft_link_open(&qp->link) || qp->link.serial != id / SOFT_MAX_QP)
		return;
	if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
		qp->link.readable = true;
	if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
		qp->link.hung_up = true;
	if (events & (EPOLLOUT | EPOLLERR))
		qp->link.writable = true;
	pier_soft_activate(&qp->end.work);
	if (qp->link.fifo)
		receive_control(qp);
}

static void dispatch_event(struct soft_context *context, const struct epoll_event *event)
{
	uint64_t id = pier_soft_event_id(event);

	switch (pier_soft_event_kind(event)) {
	case SOFT_EVENT_QP:
		dispatch_qp_event(context, id, event->events);
		break;
	case SOFT_EVENT_LISTENER:
		pier_soft_accept(&context->node);
		break;
	case SOFT_EVENT_PENDING:
		pier_soft_continue_pending(&context->node, id);
		break;
	case SOFT_EVENT_DATAGRAM:
		pier_soft_receive_datagrams(context);
		break;
	case SOFT_EVENT_WAKE:
	case SOFT_EVENT_TIMER:
		break;
	}
}

/* One turn of one queue pair is bounded: for more it returns to the end of the list. */
static void give_turn(struct soft_qp *qp)
{
	pier_list_remove(&qp->end.work.active);
	if (qp->connection.early.fd >= 0)
		pier_soft_take_stream(qp);
	if (qp->link.readable)
		pier_soft_receive(qp);
	if (qp->ibv.qp_type == IBV_QPT_UD)
		pier_soft_send_datagrams(qp);
	else
		pier_soft_run_local(qp);
	if (qp->link.writable && pier_soft_transmit(qp))
		pier_soft_activate(&qp->end.work);
	if (qp->ibv.state == IBV_QPS_ERR) {
		pier_soft_flush_sends(qp);
		pier_soft_flush_recvs(qp);
	}
	arm_timers(qp);
	if (qp->link.readable)
		pier_soft_activate(&qp->end.work);
}

/* Gives each queue pair that is on the list now one turn, or only the first one. */
static void run_active_qps(struct soft_context *context, bool only_first)
{
	struct pier_list *line = &context->engine.active;
	struct pier_list *mark = &context->engine.pass_end;

	if (pier_list_empty(line))
		return;
	/* Queue pairs that return to the list stand after this mark. */
	pier_list_append(line, mark);
	while (line->next != mark) {
		give_turn(pier_container_of(line->next, struct soft_qp, end.work.active));
		if (only_first)
			break;
	}
	pier_list_remove(mark);
}

/*
 * With the engine locked: checks the timers, collects the doorbells, handles `count`
 * events, and gives every queue pair with work one turn.
 */
static void run_pass(struct soft_context *context, const struct epoll_event *events,
		     int count)
{
	check_all_timers(context);
	pier_soft_collect_doorbells(&context->engine);
	for (int i = 0; i < count; i++)
		dispatch_event(context, &events[i]);
	run_active_qps(context, false);
}

/* Polls the FIFOs, and from time to time the kernel. */
static void poll_fifos_and_fds(struct soft_context *context)
{
	struct soft_engine *engine = &context->engine;
	struct epoll_event events[EVENTS_PER_PASS];
	uint64_t now = pier_soft_now();
	int count = 0;

	atomic_fetch_add_explicit(&engine->app_passes, 1, memory_order_relaxed);
	pier_soft_poll_fifos(&context->engine, now);
	if (engine->socket_links > 0 ||
	    now - engine->last_datagram < DATAGRAM_NANOSECONDS ||
	    now - engine->last_epoll >= EPOLL_NANOSECONDS) {
		engine->last_epoll = now;
		count = epoll_wait(engine->epoll_fd, events, EVENTS_PER_PASS, 0);
	}
	if (count > 0 || pier_soft_has_work(engine))
		run_pass(context, events, count);
}

void pier_soft_ring_doorbell(struct soft_qp *qp)
{
	struct soft_context *context = soft_context_of(qp);
	struct soft_engine *engine = &context->engine;
	struct soft_work *work = &qp->end.work, *top = atomic_load(&engine->doorbells);

	if (!atomic_exchange(&work->rung, true)) {
		do {
			work->next_rung = top;
		} while (!atomic_compare_exchange_weak(&engine->doorbells, &top, work));
	}
	if (engine->stepped || pthread_mutex_trylock(&engine->lock) != 0)
		return;
	run_pass(context, NULL, 0);
	if (engine->now - engine->last_epoll >= POST_EPOLL_NANOSECONDS)
		poll_fifos_and_fds(context);
	pier_soft_unlock(&context->engine);
}

/* Two threads that count at once may lose counts: the number is a hint. */
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
	poll_fifos_and_fds(context);
	pier_soft_unlock(&context->engine);
}

/*
 * The clock decides what is due. Whether the timer has also expired depends on the speed
 * of this process, on which steps must not depend.
 */
static int take_event(const struct soft_engine *engine, struct epoll_event *ret_event)
{
	int count;

	do
		count = epoll_wait(engine->epoll_fd, ret_event, 1, 0);
	while (count > 0 && pier_soft_event_kind(ret_event) == SOFT_EVENT_TIMER);
	return count;
}

bool pier_soft_step(struct soft_context *context)
{
	struct epoll_event event;
	bool worked;
	int count;

	pier_soft_lock(&context->engine);
	check_all_timers(context);
	pier_soft_collect_doorbells(&context->engine);
	pier_soft_poll_fifos(&context->engine, context->engine.now);
	count = take_event(&context->engine, &event);
	if (count > 0)
		dispatch_event(context, &event);
	worked = count > 0 || pier_soft_has_work(&context->engine);
	run_active_qps(context, true);
	pier_soft_unlock(&context->engine);
	return worked;
}

static void pass_without_events(struct soft_engine *engine)
{
	run_pass(pier_container_of(engine, struct soft_context, engine), NULL, 0);
}

static void lose_link(struct soft_link *link)
{
	pier_soft_lose_link(pier_container_of(link, struct soft_qp, link));
}

static const struct soft_engine_ops engine_ops = {
	.pass = pass_without_events,
	.revoke_region = pier_soft_revoke_region_grants,
	.lose_link = lose_link,
};

/* An application that polls does so often; a few polls are those before a sleep. */
static bool applications_poll(const struct soft_engine *engine)
{
	/* The difference may be negative: see pier_soft_count_poll(). */
	return (int)(atomic_load(&engine->polls) - atomic_load(&engine->seen_polls)) >=
	       POLLS_TO_PAUSE;
}

/*
 * pier_soft_end_thread_pause() stores that the polls are seen, then reads whether the
 * thread pauses. The thread stores that it pauses, then reads the polls. So either it is
 * woken, or it does not pause.
 */
static bool begin_thread_pause(struct soft_engine *engine)
{
	if (!applications_poll(engine))
		return false;
	atomic_store(&engine->paused, true);
	if (applications_poll(engine)) {
		atomic_store(&engine->seen_polls, atomic_load(&engine->polls));
		return true;
	}
	atomic_store(&engine->paused, false);
	return false;
}

void pier_soft_end_thread_pause(struct soft_context *context)
{
	struct soft_engine *engine = &context->engine;

	atomic_store(&engine->seen_polls, atomic_load(&engine->polls));
	if (atomic_load(&engine->paused) && atomic_exchange(&engine->paused, false))
		eventfd_write(engine->wake_fd, 1);
}

static bool is_engine_locked(struct soft_engine *engine)
{
	if (pthread_mutex_trylock(&engine->lock) != 0)
		return true;
	pthread_mutex_unlock(&engine->lock);
	return false;
}

/*
 * Don't wait for the lock: the waiter would inherit the next copy, on a CPU with cold
 * caches. So the pause goes on while an application holds the lock and makes a pass from
 * time to time.
 */
static void pause_thread(struct soft_engine *engine)
{
	struct pollfd wake = { .fd = engine->wake_fd, .events = POLLIN };
	struct timespec moment = { .tv_nsec = PAUSE_MICROSECONDS * 1000 };
	unsigned int passes, without = 0;

	do {
		passes = atomic_load(&engine->app_passes);
		if (ppoll(&wake, 1, &moment, NULL) != 0)
			break;
		without = atomic_load(&engine->app_passes) == passes ? without + 1 : 0;
	} while (without < PAUSES_WITHOUT_PASSES && is_engine_locked(engine));
	atomic_store(&engine->paused, false);
}

static int wait_for_events(struct soft_engine *engine, struct epoll_event *ret_events,
			   bool block)
{
	int count;

	count = epoll_wait(engine->epoll_fd, ret_events, EVENTS_PER_PASS, block ? -1 : 0);
	for (int i = 0; i < count; i++) {
		eventfd_t value;

		if (pier_soft_event_kind(&ret_events[i]) == SOFT_EVENT_WAKE)
			eventfd_read(engine->wake_fd, &value);
	}
	return count;
}

/* After a message more may follow soon. Before the thread sleeps, the peers must know. */
static bool may_sleep(struct soft_engine *engine)
{
	if (!pier_list_empty(&engine->polled) && engine->now < engine->spin_until)
		return false;
	return pier_soft_sleep_on_fifos(engine);
}

static void *run_engine(void *argument)
{
	struct soft_context *context = argument;
	struct soft_engine *engine = &context->engine;
	struct epoll_event events[EVENTS_PER_PASS];
	int count = 0;
	bool paused, block;

	for (;;) {
		pier_soft_lock(engine);
		engine->blocking = false;
		if (engine->stop)
			break;
		pier_soft_poll_fifos(engine, pier_soft_now());
		run_pass(context, events, count);
		paused = begin_thread_pause(engine);
		block = !paused && pier_list_empty(&engine->active) && may_sleep(engine);
		engine->blocking = block;
		pier_soft_unlock(engine);
		if (paused)
			pause_thread(engine);
		count = wait_for_events(engine, events, block);
	}
	pthread_mutex_unlock(&engine->lock);
	return NULL;
}

static int open_engine_fds(struct soft_engine *engine)
{
	int error;

	engine->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	engine->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	engine->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (engine->epoll_fd < 0 || engine->wake_fd < 0 || engine->timer_fd < 0)
		return pier_fail(errno, "soft0: no fd for the engine");
	/*
	 * Level-triggered: a polling application must not take the event from the
	 * thread.
	 */
	error = pier_soft_watch(engine, engine->wake_fd, EPOLLIN, SOFT_EVENT_WAKE, 0);
	if (error)
		return error;
	return pier_soft_watch(engine, engine->timer_fd, EPOLLIN | EPOLLET,
			       SOFT_EVENT_TIMER, 0);
}

int pier_soft_start_engine(struct soft_context *context, bool stepped)
{
	struct soft_engine *engine = &context->engine;
	int error;

	engine->ops = &engine_ops;
	pthread_mutex_init(&engine->lock, NULL);
	pier_list_init(&engine->active);
	pier_list_init(&engine->pass_end);
	pier_list_init(&engine->polled);
	engine->deadline = SOFT_NEVER;
	engine->stepped = stepped;
	engine->sink = malloc(SOFT_SINK_SIZE);
	error = engine->sink ? open_engine_fds(engine) : -ENOMEM;
	if (error == 0 && !stepped) {
		error = -pier_start_thread(&engine->thread, "pier-soft", run_engine,
					   context);
		engine->threaded = error == 0;
	}
	return error;
}

/* Also stops an engine whose start failed. */
void pier_soft_stop_engine(struct soft_context *context)
{
	struct soft_engine *engine = &context->engine;

	/* A forked child has no such thread, which may have held the lock. */
	if (engine->threaded && context->node.pid == getpid()) {
		pthread_mutex_lock(&engine->lock);
		engine->stop = true;
		pthread_mutex_unlock(&engine->lock);
		eventfd_write(engine->wake_fd, 1);
		pthread_join(engine->thread, NULL);
	}
	pier_close_fd(engine->timer_fd);
	pier_close_fd(engine->wake_fd);
	pier_close_fd(engine->epoll_fd);
	free(engine->sink);
	pthread_mutex_destroy(&engine->lock);
}
