/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <time.h>

#include "engine.h"
#include "core/log.h"

enum {
	EVENT_SHIFT = 56
};

void pier_soft_activate(struct soft_work *work)
{
	if (pier_list_empty(&work->active))
		pier_list_append(&work->engine->active, &work->active);
}

int pier_soft_watch(struct soft_engine *engine, int fd, uint32_t events,
		    enum soft_event event, uint64_t id)
{
	struct epoll_event watched = {
		.events = events,
		.data.u64 = (uint64_t)event << EVENT_SHIFT | id,
	};

	if (epoll_ctl(engine->epoll_fd, EPOLL_CTL_ADD, fd, &watched) < 0)
		return -errno;
	return 0;
}

/*
 * Explicit, because a copy of the fd in a forked child would keep a closed fd in the
 * epoll set.
 */
void pier_soft_unwatch(struct soft_engine *engine, int fd)
{
	epoll_ctl(engine->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
}

/*
 * The timer expires at or before every deadline; each user compares the clock with its
 * own.
 */
void pier_soft_arm_timer(struct soft_engine *engine, uint64_t when)
{
	struct itimerspec setting = { 0 };

	if (when >= engine->deadline)
		return;
	engine->deadline = when;
	setting.it_value.tv_sec = (time_t)(when / 1000000000u);
	setting.it_value.tv_nsec = (long)(when % 1000000000u);
	timerfd_settime(engine->timer_fd, TFD_TIMER_ABSTIME, &setting, NULL);
}

void pier_soft_collect_doorbells(struct soft_engine *engine)
{
	struct soft_work *work = atomic_exchange(&engine->doorbells, NULL);

	while (work) {
		struct soft_work *next = work->next_rung;

		/*
		 * From here on a poster may push it again, so `next` was
		 * read first. The write is a read-modify-write: a poster that found the
		 * doorbell rung did not push, and what it queued is visible after this.
		 */
		atomic_exchange(&work->rung, false);
		pier_soft_activate(work);
		work = next;
	}
}

enum soft_event pier_soft_event_kind(const struct epoll_event *event)
{
	return (enum soft_event)(event->data.u64 >> EVENT_SHIFT);
}

uint64_t pier_soft_event_id(const struct epoll_event *event)
{
	return event->data.u64 & ((UINT64_C(1) << EVENT_SHIFT) - 1);
}

/*
 * A poster that found the lock taken has left its doorbell, and the thread that unlocks
 * serves it. The read is a read-modify-write on purpose. Either it sees the push of the
 * poster. Or it comes before that push in the order of all writes to `doorbells`; then
 * the unlock happens before the trylock of the poster, which cannot fail because of this
 * thread.
 */
static bool doorbells_rung(struct soft_engine *engine)
{
	struct soft_work *none = NULL;

	return !atomic_compare_exchange_strong(&engine->doorbells, &none, NULL);
}

void pier_soft_unlock(struct soft_engine *engine)
{
	for (;;) {
		/* The thread must not sleep while a shared FIFO is polled. */
		if (engine->blocking &&
		    (pier_soft_has_work(engine) || !pier_list_empty(&engine->polled))) {
			engine->blocking = false;
			eventfd_write(engine->wake_fd, 1);
		}
		pthread_mutex_unlock(&engine->lock);
		if (engine->stepped || !doorbells_rung(engine))
			return;
		if (pthread_mutex_trylock(&engine->lock) != 0)
			return;
		engine->ops->pass(engine);
	}
}

void pier_soft_lock(struct soft_engine *engine)
{
	atomic_fetch_add(&engine->waiters, 1);
	pthread_mutex_lock(&engine->lock);
	atomic_fetch_sub(&engine->waiters, 1);
}
