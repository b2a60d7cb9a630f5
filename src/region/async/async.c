/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "event_queue.h"
#include "region/attr.h"
#include "region/dereg.h"
#include "region/plan.h"
#include "region/register.h"
#include "region/resolve.h"
#include "core/caller.h"
#include "core/error.h"
#include "core/log.h"
#include "core/object.h"

/*
 * An asynchronous registration, from its call to its event. The call resolves and plans
 * the region, a thread of the queue registers it. The thread that takes a registration
 * out of the queue also completes it; others only set `cancelled` and `closed` for it.
 */

static void free_registration(struct pier_registration *registration)
{
	pier_object_untrack(&registration->object);
	free(registration);
}

static void take_from_queue(struct pier_registration *registration)
{
	pier_list_remove(&registration->link);
	registration->state = PIER_REGISTRATION_BUSY;
	registration->queue->busy++;
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
		pier_publish_event(registration);
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
		registration->event.mr = region;
	}
}

/* Without the lock. The user has not seen the region. */
static void deregister_unwanted(struct pier_registration *registration, uint64_t length)
{
	if (pier_dereg_mr(registration->event.mr))
		pier_warning("an unwanted region stays registered: %s",
			     pier_error_message());
	else
		set_event_cancelled(registration, length);
}

/* On a thread of the queue. */
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
	registration->run = run_registration;
	registration->pd = pd;
	registration->event.kind = PIER_EVENT_MR_REGISTERED;
	registration->event.registration = registration;
	registration->event.context = attr->context;
	error = pier_resolve_region(pd, attr, NULL, &registration->region);
	if (!error)
		error = pier_plan_region(registration->region, attr);
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

int pier_reg_mr_async(struct pier_event_queue *queue, struct pier_pd *pd,
		      const struct pier_mr_attr *attr,
		      struct pier_registration **ret_registration)
{
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
	struct pier_event_queue *queue = registration->queue;
	int error = pier_check_process(&queue->object);
	bool over;

	if (error)
		return error;
	pthread_mutex_lock(&queue->lock);
	over = registration->state == PIER_REGISTRATION_OVER ||
	       registration->state == PIER_REGISTRATION_READ;
	registration->cancelled = !over;
	if (registration->state == PIER_REGISTRATION_QUEUED)
		drop_queued(registration);
	pthread_mutex_unlock(&queue->lock);
	if (over)
		return pier_fail(EALREADY, "cancelling a registration: it is over");
	return 0;
}

/* Close a completed registration with an unread event. Unlocks to deregister. */
static int discard_completed(struct pier_registration *registration)
{
	struct pier_event_queue *queue = registration->queue;
	int error = 0;

	pier_withdraw_event(registration);
	if (registration->event.mr) {
		registration->state = PIER_REGISTRATION_BUSY;
		queue->busy++;
		pthread_mutex_unlock(&queue->lock);
		error = pier_dereg_mr(registration->event.mr);
		pthread_mutex_lock(&queue->lock);
		queue->busy--;
	}
	if (error)
		pier_publish_event(registration);
	else
		free_registration(registration);
	return error;
}

static int close_by_state(struct pier_registration *registration)
{
	if (registration->state == PIER_REGISTRATION_OVER)
		return discard_completed(registration);
	registration->closed = true;
	if (registration->state == PIER_REGISTRATION_QUEUED)
		drop_queued(registration);
	else if (registration->state == PIER_REGISTRATION_READ)
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
	read = registration->state == PIER_REGISTRATION_READ;
	error = close_by_state(registration);
	if (!error) {
		queue->open--;
		queue->unread -= !read;
	}
	pthread_mutex_unlock(&queue->lock);
	return error;
}
