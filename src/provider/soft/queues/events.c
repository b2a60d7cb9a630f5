/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <strings.h>
#include <sys/eventfd.h>

#include "events.h"
#include "core/fd.h"
#include "provider/soft/soft.h"

int pier_soft_open_events(struct soft_handle *handle)
{
	pthread_mutex_init(&handle->events.lock, NULL);
	pthread_cond_init(&handle->events.acknowledged, NULL);
	pier_list_init(&handle->events.sources);
	handle->verbs.context.async_fd = eventfd(0, EFD_CLOEXEC);
	return handle->verbs.context.async_fd < 0 ? -errno : 0;
}

void pier_soft_close_events(struct soft_handle *handle)
{
	pier_close_fd(handle->verbs.context.async_fd);
	pthread_cond_destroy(&handle->events.acknowledged);
	pthread_mutex_destroy(&handle->events.lock);
}

void pier_soft_init_event_source(struct soft_event_source *source, void *element)
{
	pier_list_init(&source->link);
	source->element = element;
}

static void unlink_source(struct soft_handle *handle, struct soft_event_source *source)
{
	pier_list_remove(&source->link);
	if (pier_list_empty(&handle->events.sources))
		pier_soft_set_readable(handle->verbs.context.async_fd, false);
}

void pier_soft_report_event(struct ibv_context *ibv_context,
			    struct soft_event_source *source, enum ibv_event_type type)
{
	struct soft_events *events = &soft_handle(ibv_context)->events;

	pthread_mutex_lock(&events->lock);
	if (pier_list_empty(&events->sources))
		pier_soft_set_readable(ibv_context->async_fd, true);
	if (!source->pending)
		pier_list_append(&events->sources, &source->link);
	source->pending |= UINT32_C(1) << type;
	pthread_mutex_unlock(&events->lock);
}

/* The first event of the source that has waited longest. */
static bool take_event(struct soft_handle *handle, struct ibv_async_event *ret_event)
{
	struct soft_events *events = &handle->events;
	struct soft_event_source *source;
	bool there;

	pthread_mutex_lock(&events->lock);
	there = !pier_list_empty(&events->sources);
	if (there) {
		source = pier_container_of(events->sources.next, struct soft_event_source,
					   link);
		/* All members for objects are pointers in one union. */
		ret_event->element.qp = source->element;
		ret_event->event_type = (enum ibv_event_type)(ffs((int)source->pending) -
							      1);
		source->pending &= source->pending - 1;
		source->unacknowledged++;
		if (!source->pending)
			unlink_source(handle, source);
	}
	pthread_mutex_unlock(&events->lock);
	return there;
}

int pier_soft_get_async_event(struct ibv_context *context,
			      struct ibv_async_event *ret_event)
{
	while (!take_event(soft_handle(context), ret_event)) {
		if (pier_wait_readable(context->async_fd))
			return -1;
	}
	return 0;
}

void pier_soft_ack_source(struct ibv_context *context, struct soft_event_source *source)
{
	struct soft_events *events = &soft_handle(context)->events;

	pthread_mutex_lock(&events->lock);
	source->unacknowledged--;
	pthread_cond_broadcast(&events->acknowledged);
	pthread_mutex_unlock(&events->lock);
}

void pier_soft_retire_event_source(struct ibv_context *context,
				   struct soft_event_source *source)
{
	struct soft_handle *handle = soft_handle(context);
	struct soft_events *events = &handle->events;

	pthread_mutex_lock(&events->lock);
	if (source->pending)
		unlink_source(handle, source);
	while (source->unacknowledged > 0)
		pthread_cond_wait(&events->acknowledged, &events->lock);
	pthread_mutex_unlock(&events->lock);
}

void pier_soft_set_readable(int fd, bool readable)
{
	eventfd_t value;

	if (readable)
		eventfd_write(fd, 1);
	else
		eventfd_read(fd, &value);
}
