/* SPDX-License-Identifier: BSD-3-Clause */
#include <sys/epoll.h>

#include "pass.h"
#include "core/log.h"
#include "engine.h"
#include "provider/soft/connect/pending.h"
#include "provider/soft/link/control_receive.h"
#include "provider/soft/link/grant_given.h"
#include "provider/soft/link/link.h"
#include "provider/soft/link/ring.h"
#include "provider/soft/queues/datagram.h"
#include "provider/soft/queues/qp.h"
#include "provider/soft/queues/requester.h"
#include "provider/soft/queues/stream.h"
#include "provider/soft/queues/timers.h"

enum {
	EVENTS_PER_PASS = 32,
	STALL_NANOSECONDS = 250000000,
	/*
	 * How often a polling thread asks the kernel while shared rings bring the news.
	 */
	EPOLL_NANOSECONDS = 10000,
	/* After a datagram others are likely, which only the kernel announces. */
	DATAGRAM_NANOSECONDS = 1000000,
	/* A thread that posts may poll soon anyway, so it does so rarely. */
	POST_EPOLL_NANOSECONDS = 100000
};

static void check_all_timers(struct soft_context *context)
{
	struct soft_engine *engine = &context->engine;
	bool stopped;

	engine->now = pier_soft_now();
	if (engine->now < engine->deadline)
		return;
	/* So late that this process did not run: the peer was not silent. */
	stopped = engine->now - engine->deadline > STALL_NANOSECONDS;
	engine->deadline = SOFT_NEVER;
	for (uint32_t i = 0; i < SOFT_MAX_QP; i++) {
		struct soft_qp *qp = pier_soft_qp_at(context, i);

		if (!qp)
			continue;
		if (stopped)
			qp->last_progress = engine->now;
		pier_soft_check_timers(qp);
	}
	pier_soft_check_pending(&context->node);
}

/* The peer may have sent control messages, or bytes through its ring. */
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
	if (qp->link.ring)
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
	pier_soft_arm_timers(qp);
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

void pier_soft_pass(struct soft_context *context, const struct epoll_event *events,
		    int count)
{
	check_all_timers(context);
	pier_soft_collect_doorbells(&context->engine);
	for (int i = 0; i < count; i++)
		dispatch_event(context, &events[i]);
	run_active_qps(context, false);
}

/* Polls the rings, and from time to time the kernel. */
static void poll_rings_and_fds(struct soft_context *context)
{
	struct soft_engine *engine = &context->engine;
	struct epoll_event events[EVENTS_PER_PASS];
	uint64_t now = pier_soft_now();
	int count = 0;

	atomic_fetch_add_explicit(&engine->app_passes, 1, memory_order_relaxed);
	pier_soft_poll_rings(&context->engine, now);
	if (engine->socket_links > 0 ||
	    now - engine->last_datagram < DATAGRAM_NANOSECONDS ||
	    now - engine->last_epoll >= EPOLL_NANOSECONDS) {
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
	struct soft_work *work = &qp->end.work, *top = atomic_load(&engine->doorbells);

	if (!atomic_exchange(&work->rung, true)) {
		do {
			work->next_rung = top;
		} while (!atomic_compare_exchange_weak(&engine->doorbells, &top, work));
	}
	if (engine->stepped || pthread_mutex_trylock(&engine->lock) != 0)
		return;
	pier_soft_pass(context, NULL, 0);
	if (engine->now - engine->last_epoll >= POST_EPOLL_NANOSECONDS)
		poll_rings_and_fds(context);
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
	poll_rings_and_fds(context);
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
	pier_soft_poll_rings(&context->engine, context->engine.now);
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
	pier_soft_pass(pier_container_of(engine, struct soft_context, engine), NULL, 0);
}

static void lose_link(struct soft_link *link)
{
	pier_soft_lose_link(pier_container_of(link, struct soft_qp, link));
}

const struct soft_engine_ops pier_soft_engine_ops = {
	.pass = pass_without_events,
	.revoke_region = pier_soft_revoke_region_grants,
	.lose_link = lose_link,
};
