/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "event_queue.h"
#include "core/caller.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/extensible.h"
#include "core/fd.h"
#include "core/object.h"
#include "core/sleep.h"
#include "core/thread.h"

enum {
	MOST_WORKERS = 64,
};

static_assert(sizeof(struct pier_event_queue_attr) ==
		      offsetof(struct pier_event_queue_attr, depth) + sizeof(uint32_t),
	      "no padding at the end, where a new field would not change the size");

static int read_attr(const struct pier_event_queue_attr *attr,
		     struct pier_event_queue_attr *ret_attr)
{
	int error = 0;

	pier_event_queue_attr_init(ret_attr);
	if (attr)
		error = pier_read_extensible("event queue attributes",
					     "pier_event_queue_attr_init()", attr,
					     sizeof(*attr), sizeof(*attr), ret_attr);
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
		next = pier_container_of(queue->queued.next, struct pier_registration,
					 link);
		next->run(next);
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
	return queue->fd;
}

void pier_publish_event(struct pier_registration *registration)
{
	struct pier_event_queue *queue = registration->queue;

	registration->state = PIER_REGISTRATION_OVER;
	if (pier_list_empty(&queue->events))
		eventfd_write(queue->fd, 1);
	pier_list_append(&queue->events, &registration->link);
}

void pier_withdraw_event(struct pier_registration *registration)
{
	struct pier_event_queue *queue = registration->queue;
	eventfd_t value;

	pier_list_remove(&registration->link);
	if (pier_list_empty(&queue->events))
		eventfd_read(queue->fd, &value);
}

int pier_event_queue_read(struct pier_event_queue *queue, struct pier_event *ret_event)
{
	struct pier_registration *registration;
	int count = pier_check_process(&queue->object);

	if (count)
		return count;
	pthread_mutex_lock(&queue->lock);
	if (!pier_list_empty(&queue->events)) {
		registration = pier_container_of(queue->events.next,
						 struct pier_registration, link);
		pier_withdraw_event(registration);
		registration->state = PIER_REGISTRATION_READ;
		queue->unread--;
		*ret_event = registration->event;
		count = 1;
	}
	pthread_mutex_unlock(&queue->lock);
	return count;
}

int pier_event_queue_wait(struct pier_event_queue *queue, int timeout_ms,
			  struct pier_event *ret_event)
{
	struct pollfd fd = { .fd = queue->fd, .events = POLLIN };
	int64_t deadline = pier_deadline(timeout_ms);

	if (timeout_ms < 0)
		return pier_fail(EINVAL, "timeout_ms %d: use 0 or more", timeout_ms);
	for (;;) {
		int count = pier_event_queue_read(queue, ret_event);
		int left = pier_poll_timeout(deadline);

		if (count)
			return count < 0 ? count : 0;
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
