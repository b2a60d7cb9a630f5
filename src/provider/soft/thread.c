/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "thread.h"
#include "core/error.h"
#include "core/fd.h"
#include "core/thread.h"
#include "engine.h"
#include "pass.h"
#include "provider/soft/link/ring.h"
#include "soft.h"

enum {
	EVENTS_PER_PASS = 32,
	/* How long the thread leaves the events to applications that poll. */
	PAUSE_MICROSECONDS = 500,
	POLLS_TO_PAUSE = 8,
	/* So long an application may hold the lock without a pass: it is copying. */
	PAUSES_WITHOUT_PASSES = 4
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
	return pier_soft_sleep_on_rings(engine);
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
		pier_soft_poll_rings(engine, pier_soft_now());
		pier_soft_pass(context, events, count);
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
