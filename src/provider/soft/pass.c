/* SPDX-License-Identifier: BSD-3-Clause */
#include <sys/epoll.h>

#include "pass.h"
#include "core/log.h"
#include "engine.h"
#include "provider/soft/connect/pending.h"
#include "provider/soft/link/control_receive.h"
#include "provider/soft/link/grant_given.h"
#include "provider/soft/link/link.h"
#include "provider/soft/link/polling.h"
#include "provider/soft/queues/complete.h"
#include "provider/soft/queues/receive.h"
#include "provider/soft/queues/requester.h"
#include "provider/soft/queues/timers.h"
#include "provider/soft/queues/transmit.h"
#include "soft.h"

enum {
	EVENTS_PER_PASS = 32,
	STOPPED_NANOSECONDS = 250000000,
	/* How often who polls asks the kernel when rings bring the news. */
	LOOK_NANOSECONDS = 10000,
	/* How often who posts looks around, who may find something at each poll. */
	POST_LOOK_NANOSECONDS = 100000
};

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

/* Not closing(): then it does not matter any more what the peer says. */
static void hear(struct soft_qp *qp)
{
	pier_soft_start_polling(qp);
	if (pier_soft_receive_control(qp))
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
	if (qp->link.ring)
		hear(qp);
}

static void dispatch(struct soft_context *context, const struct epoll_event *event)
{
	uint64_t id = pier_soft_event_id(event);

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
	struct pier_list *mark = &context->engine.pass_end;

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
	pier_soft_collect_doorbells(context);
	for (int i = 0; i < count; i++)
		dispatch(context, &events[i]);
	run_active(context, false);
}

/* At rings, and from time to time at what the kernel has. */
static void look_around(struct soft_context *context)
{
	struct soft_engine *engine = &context->engine;
	struct epoll_event events[EVENTS_PER_PASS];
	uint64_t now = pier_soft_now();
	int count = 0;

	atomic_fetch_add_explicit(&engine->app_passes, 1, memory_order_relaxed);
	pier_soft_poll_rings(context, now);
	if (engine->socket_links > 0 || now - engine->last_epoll >= LOOK_NANOSECONDS) {
		engine->last_epoll = now;
		count = epoll_wait(engine->epoll_fd, events, EVENTS_PER_PASS, 0);
	}
	if (count > 0 || pier_soft_has_work(engine))
		pier_soft_pass(context, events, count);
}

void pier_soft_ring_doorbell(struct soft_qp *qp)
{
	struct soft_context *context = soft_context_of(qp);
	struct soft_engine *engine = &context->engine;
	struct soft_qp *top = atomic_load(&engine->doorbells);

	if (!atomic_exchange(&qp->rung, true)) {
		do {
			qp->next_rung = top;
		} while (!atomic_compare_exchange_weak(&engine->doorbells, &top, qp));
	}
	if (engine->stepped || pthread_mutex_trylock(&engine->lock) != 0)
		return;
	pier_soft_pass(context, NULL, 0);
	if (engine->now - engine->last_epoll >= POST_LOOK_NANOSECONDS)
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
	pier_soft_collect_doorbells(context);
	pier_soft_poll_rings(context, context->engine.now);
	count = take_event(&context->engine, &event);
	if (count > 0)
		dispatch(context, &event);
	worked = count > 0 || pier_soft_has_work(&context->engine);
	run_active(context, true);
	pier_soft_unlock(context);
	return worked;
}

static void pass_without_events(struct soft_context *context)
{
	pier_soft_pass(context, NULL, 0);
}

const struct soft_engine_ops pier_soft_engine_ops = {
	.pass = pass_without_events,
	.revoke_region = pier_soft_revoke_region_grants,
	.lose_link = pier_soft_lose_link,
};
