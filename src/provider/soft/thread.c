/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include "util/error.h"
#include "util/fd.h"
#include "util/thread.h"
#include "soft.h"

enum {
	EVENTS_PER_PASS = 32,
	/* How long the thread leaves events to applications that poll. */
	REST_MICROSECONDS = 500
};

/* While applications poll, events are theirs: two at it only disturb each other. */
static int wait_for_events(struct soft_engine *engine, struct epoll_event *ret_events,
			   bool rest, bool block)
{
	struct pollfd wake = { .fd = engine->wake_fd, .events = POLLIN };
	struct timespec moment = { .tv_nsec = REST_MICROSECONDS * 1000 };
	int count;

	if (rest)
		ppoll(&wake, 1, &moment, NULL);
	count = epoll_wait(engine->epoll_fd, ret_events, EVENTS_PER_PASS, block ? -1 : 0);
	for (int i = 0; i < count; i++) {
		eventfd_t value;

		if (pier_soft_event_kind(&ret_events[i]) == SOFT_EVENT_WAKE)
			eventfd_read(engine->wake_fd, &value);
	}
	return count;
}

static void *run_engine(void *argument)
{
	struct soft_context *context = argument;
	struct soft_engine *engine = &context->engine;
	struct epoll_event events[EVENTS_PER_PASS];
	unsigned int polls, last_polls = 0;
	int count = 0;
	bool rest, block;

	for (;;) {
		pier_soft_lock(context);
		engine->blocking = false;
		if (engine->stop)
			break;
		pier_soft_pass(context, events, count);
		polls = atomic_load_explicit(&engine->polls, memory_order_relaxed);
		rest = polls != last_polls;
		last_polls = polls;
		block = !rest && pier_list_empty(&engine->active);
		engine->blocking = block;
		pier_soft_unlock(context);
		count = wait_for_events(engine, events, rest, block);
	}
	pthread_mutex_unlock(&engine->lock);
	return NULL;
}

static int open_fds(struct soft_context *context)
{
	struct soft_engine *engine = &context->engine;
	int error;

	engine->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	engine->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	engine->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (engine->epoll_fd < 0 || engine->wake_fd < 0 || engine->timer_fd < 0)
		return pier_fail(errno, "soft0: no fd for the engine");
	/* Level-triggered: a poller that sees it must not take it from the thread. */
	error = pier_soft_watch(context, engine->wake_fd, EPOLLIN, SOFT_EVENT_WAKE, 0);
	if (error)
		return error;
	return pier_soft_watch(context, engine->timer_fd, EPOLLIN | EPOLLET,
			       SOFT_EVENT_TIMER, 0);
}

int pier_soft_start_engine(struct soft_context *context, bool stepped)
{
	struct soft_engine *engine = &context->engine;
	int error;

	pthread_mutex_init(&engine->lock, NULL);
	pier_list_init(&engine->active);
	pier_list_init(&engine->mark);
	engine->deadline = SOFT_NEVER;
	engine->stepped = stepped;
	engine->sink = malloc(SOFT_SINK_SIZE);
	error = engine->sink ? open_fds(context) : -ENOMEM;
	if (error == 0 && !stepped) {
		error = -pier_start_thread(&engine->thread, "pier-soft", run_engine,
					   context);
		engine->threaded = error == 0;
	}
	return error;
}

/* Takes a half-started engine as well. */
void pier_soft_stop_engine(struct soft_context *context)
{
	struct soft_engine *engine = &context->engine;

	if (engine->threaded) {
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
