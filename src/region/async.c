/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include <pier/event.h>

#include "core/caller.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/extensible.h"
#include "core/fd.h"
#include "core/list.h"
#include "core/log.h"
#include "core/object.h"
#include "core/sleep.h"
#include "core/thread.h"
#include "plan.h"
#include "reg.h"

/*
 * An asynchronous registration, from its call to its event. The call plans the region, a
 * thread of the queue registers it. The thread that takes a registration out of the queue
 * also completes it; others only set `cancelled` and `closed` for it.
 */

struct pier_event_queue {
	struct pier_object object;
	pthread_mutex_t lock; /* guards everything below, and the registrations */
	pthread_cond_t work;  /* something is queued, or `stop` is set */
	struct pier_list queued;
	struct pier_list events; /* registrations in the order of their completion */
	uint32_t depth;
	uint32_t unread; /* registrations, not closed, whose event was not read */
	uint32_t open;	 /* registrations that are not closed */
	uint32_t busy;	 /* registrations taken out of `queued` that are not complete */
	int fd;		 /* an eventfd: 1 while there are events */
	bool stop;
	uint32_t thread_count;
	pthread_t threads[];
};

enum state {
	STATE_QUEUED,
	STATE_BUSY, /* a thread works on it without the lock */
	STATE_OVER, /* its event can be read */
	STATE_READ,
};

struct pier_registration {
	struct pier_object object;
	struct pier_list link; /* in queued or events */
	struct pier_event_queue *queue;
	struct pier_pd *pd;	/* counted as its child; NULL when it is over */
	struct pier_mr *region; /* until it is registered or freed */
	enum state state;
	bool cancelled, closed;
	struct pier_event event;
};

static void free_registration(struct pier_registration *registration)
{
	pier_object_untrack(&registration->object);
	free(registration);
}

static void take_from_queue(struct pier_registration *registration)
{
	pier_list_remove(&registration->link);
	registration->state = STATE_BUSY;
	registration->queue->busy++;
}

/* Append the event of a registration, and remove it from any position. */
static void publish_event(struct pier_registration *registration)
{
	struct pier_event_queue *queue = registration->queue;

	registration->state = STATE_OVER;
	if (pier_list_empty(&queue->events))
		eventfd_write(queue->fd, 1);
	pier_list_append(&queue->events, &registration->link);
}

/* The reader of the event may free the PD, so release it before the event. */
static void finish_registration(struct pier_registration *registration)
{
	registration->queue->busy--;
	/* A region that is registered counts itself. */
	atomic_fetch_sub(&registration->pd->registrations, 1);
	atomic_fetch_sub(&registration->pd->children, 1);
	registration->pd = NULL;
	if (registration->closed)
		free_registration(registration);
	else
		publish_event(registration);
}

static void set_event_error(struct pier_registration *registration, int error)
{
	struct pier_event *event = &registration->event;

	event->mr = NULL;
	event->error = error;
	snprintf(event->sentence, sizeof(event->sentence), "%s", pier_error_message());
}

static void set_event_cancelled(struct pier_registration *registration, uint64_t length)
{
	set_event_error(registration,
			pier_fail(ECANCELED,
				  "registering %" PRIu64 " bytes on %s: it was cancelled",
				  length, registration->pd->device->name));
}

/* The driver has its own references now. */
static void close_fds(struct pier_mr *region)
{
	for (uint32_t i = 0; i < region->range_count; i++) {
		struct pier_resolved_range *resolved = &region->ranges[i];

		if (resolved->owns_fd)
			close(resolved->range.fd);
		resolved->owns_fd = false;
	}
}

/* Without the lock. This thread is not the caller's, so set the caller. */
static void register_region(struct pier_registration *registration)
{
	PIER_ENTRY_FROM(registration->object.caller);
	struct pier_mr *region = registration->region;
	int error = pier_register_region(region);

	registration->region = NULL;
	if (error) {
		pier_free_region(region);
		set_event_error(registration, error);
	} else {
		close_fds(region);
		registration->event.mr = region;
	}
}

/* Without the lock. The user has not seen the region. */
static void deregister_unwanted(struct pier_registration *registration, uint64_t length)
{
	if (pier_mr_dereg(registration->event.mr))
		pier_warning("an unwanted region stays registered: %s",
			     pier_error_message());
	else
		set_event_cancelled(registration, length);
}

/*
 * Take it out of the queue and complete it, on a thread of the queue. Called with the
 * queue locked, and unlocks it meanwhile.
 */
static void run_registration(struct pier_registration *registration)
{
	struct pier_event_queue *queue = registration->queue;
	uint64_t length = registration->region->length;
	bool unwanted;

	take_from_queue(registration);
	pthread_mutex_unlock(&queue->lock);
	register_region(registration);
	pthread_mutex_lock(&queue->lock);
	unwanted = registration->cancelled || registration->closed;
	if (unwanted) {
		pthread_mutex_unlock(&queue->lock);
		if (registration->event.mr)
			deregister_unwanted(registration, length);
		else
			set_event_cancelled(registration, length);
		pthread_mutex_lock(&queue->lock);
	}
	finish_registration(registration);
}

/* The caller may close its fds. */
static int duplicate_fds(struct pier_mr *region)
{
	for (uint32_t i = 0; i < region->range_count; i++) {
		struct pier_resolved_range *resolved = &region->ranges[i];
		int fd;

		if (resolved->range.source != PIER_MR_DMABUF)
			continue;
		fd = fcntl(resolved->range.fd, F_DUPFD_CLOEXEC, 0);
		if (fd < 0)
			return pier_fail(errno, "duplicating fd %d of a dma-buf: %s",
					 resolved->range.fd, strerror(errno));
		resolved->range.fd = fd;
		resolved->owns_fd = true;
	}
	return 0;
}

static void describe_registration(const struct pier_object *object, char *ret_text,
				  size_t size)
{
	(void)object;
	snprintf(ret_text, size, "asynchronous registration");
}

/* Put it into the queue. It may be complete before this returns. */
static int submit_registration(struct pier_registration *registration,
			       struct pier_registration **ret_registration)
{
	struct pier_event_queue *queue = registration->queue;

	pthread_mutex_lock(&queue->lock);
	if (queue->unread == queue->depth) {
		pthread_mutex_unlock(&queue->lock);
		return pier_fail(EAGAIN,
				 "registering memory: the queue has %u unread events, "
				 "which is its depth",
				 queue->depth);
	}
	queue->unread++;
	queue->open++;
	atomic_fetch_add(&registration->pd->children, 1);
	atomic_fetch_add(&registration->pd->registrations, 1);
	registration->object.describe = describe_registration;
	pier_object_track(&registration->object, PIER_OBJECT_REGISTRATION,
			  &queue->object);
	*ret_registration = registration;
	pier_list_append(&queue->queued, &registration->link);
	pthread_cond_signal(&queue->work);
	pthread_mutex_unlock(&queue->lock);
	return 0;
}

static int make_registration(struct pier_event_queue *queue, struct pier_pd *pd,
			     const struct pier_mr_attr *attr,
			     struct pier_registration **ret_registration)
{
	struct pier_registration *registration = calloc(1, sizeof(*registration));
	int error;

	if (!registration)
		return pier_fail(ENOMEM, "registering memory: out of memory");
	registration->queue = queue;
	registration->pd = pd;
	registration->event.kind = PIER_EVENT_MR_REGISTERED;
	registration->event.registration = registration;
	registration->event.context = attr->context;
	error = pier_plan_region(pd, attr, NULL, &registration->region);
	if (!error)
		error = duplicate_fds(registration->region);
	if (!error)
		error = submit_registration(registration, ret_registration);
	if (error) {
		pier_free_region(registration->region);
		free(registration);
	}
	return error;
}

int pier_mr_reg_async(struct pier_event_queue *queue, struct pier_pd *pd,
		      const struct pier_mr_attr *attr,
		      struct pier_registration **ret_registration)
{
	PIER_REFUSE_NULL(queue, pd, attr, ret_registration);
	PIER_ENTRY();
	struct pier_mr_attr known;
	int error = pier_check_process(&queue->object);

	pier_mr_attr_init(&known);
	if (!error)
		error = pier_read_mr_attr(attr, &known);
	if (error)
		return error;
	return make_registration(queue, pd, &known, ret_registration);
}

/* Complete a queued registration without registering. */
static void drop_queued(struct pier_registration *registration)
{
	struct pier_event_queue *queue = registration->queue;
	uint64_t length = registration->region->length;

	take_from_queue(registration);
	pthread_mutex_unlock(&queue->lock);
	pier_free_region(registration->region);
	registration->region = NULL;
	set_event_cancelled(registration, length);
	pthread_mutex_lock(&queue->lock);
	finish_registration(registration);
}

int pier_registration_cancel(struct pier_registration *registration)
{
	PIER_REFUSE_NULL(registration);
	struct pier_event_queue *queue = registration->queue;
	int error = pier_check_process(&queue->object);
	bool over;

	if (error)
		return error;
	pthread_mutex_lock(&queue->lock);
	over = registration->state == STATE_OVER || registration->state == STATE_READ;
	registration->cancelled = !over;
	if (registration->state == STATE_QUEUED)
		drop_queued(registration);
	pthread_mutex_unlock(&queue->lock);
	if (over)
		return pier_fail(EALREADY, "cancelling a registration: it is over");
	return 0;
}

static void withdraw_event(struct pier_registration *registration)
{
	struct pier_event_queue *queue = registration->queue;
	eventfd_t value;

	pier_list_remove(&registration->link);
	if (pier_list_empty(&queue->events))
		eventfd_read(queue->fd, &value);
}

/* Close a completed registration with an unread event. Unlocks to deregister. */
static int discard_completed(struct pier_registration *registration)
{
	struct pier_event_queue *queue = registration->queue;
	int error = 0;

	withdraw_event(registration);
	if (registration->event.mr) {
		registration->state = STATE_BUSY;
		queue->busy++;
		pthread_mutex_unlock(&queue->lock);
		error = pier_mr_dereg(registration->event.mr);
		pthread_mutex_lock(&queue->lock);
		queue->busy--;
	}
	if (error)
		publish_event(registration);
	else
		free_registration(registration);
	return error;
}

static int close_by_state(struct pier_registration *registration)
{
	if (registration->state == STATE_OVER)
		return discard_completed(registration);
	registration->closed = true;
	if (registration->state == STATE_QUEUED)
		drop_queued(registration);
	else if (registration->state == STATE_READ)
		free_registration(registration);
	return 0;
}

int pier_registration_close(struct pier_registration *registration)
{
	struct pier_event_queue *queue;
	bool read;
	int error;

	if (!registration)
		return 0;
	queue = registration->queue;
	error = pier_check_process(&queue->object);
	if (error)
		return error;
	pthread_mutex_lock(&queue->lock);
	read = registration->state == STATE_READ;
	error = close_by_state(registration);
	if (!error) {
		queue->open--;
		queue->unread -= !read;
	}
	pthread_mutex_unlock(&queue->lock);
	return error;
}

enum {
	MOST_WORKERS = 64,
};

PIER_ASSERT_NO_PADDING(event_queue_attr, depth);

static int read_attr(const struct pier_event_queue_attr *attr,
		     struct pier_event_queue_attr *ret_attr)
{
	int error = PIER_READ_ATTR("event queue attributes", event_queue_attr, attr,
				   PIER_SIZE_UP_TO(event_queue_attr, depth), ret_attr);

	if (error)
		return error;
	if (ret_attr->workers < 1 || ret_attr->workers > MOST_WORKERS)
		return pier_fail(EINVAL,
				 "event queue attributes: workers %u is not in 1 to %d",
				 ret_attr->workers, MOST_WORKERS);
	if (ret_attr->depth < 1)
		return pier_fail(EINVAL, "event queue attributes: depth 0: nothing could "
					 "be registered");
	return 0;
}

static void *run_worker(void *argument)
{
	struct pier_event_queue *queue = argument;

	pthread_mutex_lock(&queue->lock);
	while (!queue->stop) {
		struct pier_registration *next;

		if (pier_list_empty(&queue->queued)) {
			pthread_cond_wait(&queue->work, &queue->lock);
			continue;
		}
		next = pier_container_of(pier_list_take(&queue->queued),
					 struct pier_registration, link);
		run_registration(next);
	}
	pthread_mutex_unlock(&queue->lock);
	return NULL;
}

static void describe_queue(const struct pier_object *object, char *ret_text, size_t size)
{
	const struct pier_event_queue *queue = (const struct pier_event_queue *)object;

	snprintf(ret_text, size, "event queue of %u threads", queue->thread_count);
}

/* No thread is in a driver, so all end at once. The queue may be half-built. */
static void free_queue(struct pier_event_queue *queue)
{
	pthread_mutex_lock(&queue->lock);
	queue->stop = true;
	pthread_cond_broadcast(&queue->work);
	pthread_mutex_unlock(&queue->lock);
	for (uint32_t i = 0; i < queue->thread_count; i++)
		pthread_join(queue->threads[i], NULL);
	pier_close_fd(queue->fd);
	pthread_cond_destroy(&queue->work);
	pthread_mutex_destroy(&queue->lock);
	free(queue);
}

static int start_workers(struct pier_event_queue *queue, uint32_t count)
{
	while (queue->thread_count < count) {
		int error = pier_start_thread(&queue->threads[queue->thread_count],
					      "pier-reg", run_worker, queue);

		if (error)
			return pier_fail(error,
					 "creating an event queue: thread %u of %u: %s",
					 queue->thread_count + 1, count, strerror(error));
		queue->thread_count++;
	}
	return 0;
}

int pier_event_queue_create(const struct pier_event_queue_attr *attr,
			    struct pier_event_queue **ret_queue)
{
	PIER_REFUSE_NULL(ret_queue);
	PIER_ENTRY();
	struct pier_event_queue_attr known;
	struct pier_event_queue *queue;
	int error = read_attr(attr, &known);

	if (error)
		return error;
	queue = calloc(1, sizeof(*queue) + known.workers * sizeof(queue->threads[0]));
	if (!queue)
		return pier_fail(ENOMEM, "creating an event queue: out of memory");
	pthread_mutex_init(&queue->lock, NULL);
	pthread_cond_init(&queue->work, NULL);
	pier_list_init(&queue->queued);
	pier_list_init(&queue->events);
	queue->depth = known.depth;
	queue->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (queue->fd < 0)
		error = pier_fail(errno, "creating an event queue: eventfd: %s",
				  strerror(errno));
	else
		error = start_workers(queue, known.workers);
	if (error) {
		free_queue(queue);
		return error;
	}
	queue->object.describe = describe_queue;
	pier_object_track(&queue->object, PIER_OBJECT_EVENT_QUEUE, NULL);
	*ret_queue = queue;
	return 0;
}

int pier_event_queue_destroy(struct pier_event_queue *queue)
{
	uint32_t open, busy;
	int error;

	if (!queue)
		return 0;
	error = pier_check_process(&queue->object);
	if (error)
		return error;
	pthread_mutex_lock(&queue->lock);
	open = queue->open;
	busy = queue->busy;
	pthread_mutex_unlock(&queue->lock);
	if (open)
		return pier_fail(
			EBUSY, "destroying an event queue: %u registration%s not closed",
			open, open == 1 ? " is" : "s are");
	if (busy)
		return pier_fail(
			EBUSY,
			"destroying an event queue: the driver still works on %u "
			"registration%s that %s closed; try again later",
			busy, busy == 1 ? "" : "s", busy == 1 ? "is" : "are");
	pier_object_untrack(&queue->object);
	free_queue(queue);
	return 0;
}

int pier_event_queue_fd(const struct pier_event_queue *queue)
{
	PIER_REFUSE_NULL(queue);
	return queue->fd;
}

static int read_event(struct pier_event_queue *queue, struct pier_event *ret_event,
		      size_t size)
{
	struct pier_registration *registration;
	int count = pier_check_process(&queue->object);

	if (count)
		return count;
	pthread_mutex_lock(&queue->lock);
	if (!pier_list_empty(&queue->events)) {
		registration = pier_container_of(queue->events.next,
						 struct pier_registration, link);
		withdraw_event(registration);
		registration->state = STATE_READ;
		queue->unread--;
		pier_write_extensible(&registration->event, sizeof(registration->event),
				      ret_event, size);
		count = 1;
	}
	pthread_mutex_unlock(&queue->lock);
	return count;
}

int pier_event_queue_wait(struct pier_event_queue *queue, int timeout_ms,
			  struct pier_event *ret_event, size_t size)
{
	PIER_REFUSE_NULL(queue, ret_event);
	struct pollfd fd = { .fd = queue->fd, .events = POLLIN };
	int error = pier_check_timeout(timeout_ms, PIER_TIMEOUT_USUAL, &timeout_ms);
	int64_t deadline = pier_deadline(timeout_ms);

	if (error)
		return error;
	for (;;) {
		int count = read_event(queue, ret_event, size);
		int left = pier_poll_timeout(deadline);

		if (count || timeout_ms == 0)
			return count;
		if (left == 0)
			return pier_fail(ETIMEDOUT, "no event within %d ms", timeout_ms);
		count = pier_sleep(&fd, 1, left);
		if (count < 0)
			return count == -EINTR
				       ? count
				       : pier_fail(-count, "poll the event queue: %s",
						   strerror(-count));
	}
}
