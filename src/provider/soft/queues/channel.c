/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#include "channel.h"
#include "core/error.h"
#include "core/fd.h"
#include "cq.h"
#include "event_fd.h"
#include "provider/soft/soft.h"

static struct soft_channel *channel_of(const struct soft_cq *cq)
{
	return (struct soft_channel *)cq->ibv.channel;
}

struct ibv_comp_channel *pier_soft_create_comp_channel(struct ibv_context *context)
{
	struct soft_channel *channel = calloc(1, sizeof(*channel));

	if (!channel)
		return NULL;
	channel->ibv.fd = eventfd(0, EFD_CLOEXEC);
	if (channel->ibv.fd < 0) {
		free(channel);
		return NULL;
	}
	channel->ibv.context = context;
	pthread_mutex_init(&channel->lock, NULL);
	pier_list_init(&channel->events);
	pier_soft_use_handle(context);
	return &channel->ibv;
}

int pier_soft_destroy_comp_channel(struct ibv_comp_channel *ibv_channel)
{
	struct soft_channel *channel = (struct soft_channel *)ibv_channel;
	bool used;

	pthread_mutex_lock(&channel->lock);
	used = channel->users > 0;
	pthread_mutex_unlock(&channel->lock);
	if (used)
		return -pier_fail(EBUSY,
				  "soft0: completion queues still use the channel");
	pier_soft_leave_handle(ibv_channel->context);
	pthread_mutex_destroy(&channel->lock);
	pier_close_fd(channel->ibv.fd);
	free(channel);
	return 0;
}

void pier_soft_queue_event(struct soft_cq *cq)
{
	struct soft_channel *channel = channel_of(cq);

	pthread_mutex_lock(&channel->lock);
	if (cq->events_queued++ == 0) {
		if (pier_list_empty(&channel->events))
			pier_soft_set_readable(channel->ibv.fd, true);
		pier_list_append(&channel->events, &cq->event_link);
	}
	pthread_mutex_unlock(&channel->lock);
}

static void unlink_events(struct soft_channel *channel, struct soft_cq *cq)
{
	pier_list_remove(&cq->event_link);
	if (pier_list_empty(&channel->events))
		pier_soft_set_readable(channel->ibv.fd, false);
}

bool pier_soft_withdraw_event(struct soft_cq *cq)
{
	struct soft_channel *channel = channel_of(cq);
	bool queued;

	pthread_mutex_lock(&channel->lock);
	queued = cq->events_queued > 0;
	if (queued && --cq->events_queued == 0)
		unlink_events(channel, cq);
	pthread_mutex_unlock(&channel->lock);
	return queued;
}

static struct soft_cq *take_event(struct soft_channel *channel)
{
	struct soft_cq *cq = NULL;

	pthread_mutex_lock(&channel->lock);
	if (!pier_list_empty(&channel->events)) {
		cq = pier_container_of(channel->events.next, struct soft_cq, event_link);
		cq->events_taken++;
		if (--cq->events_queued == 0)
			unlink_events(channel, cq);
		else {
			pier_list_remove(&cq->event_link);
			pier_list_append(&channel->events, &cq->event_link);
		}
	}
	pthread_mutex_unlock(&channel->lock);
	return cq;
}

int pier_soft_get_cq_event(struct ibv_comp_channel *ibv_channel, struct ibv_cq **ret_cq,
			   void **ret_cq_context)
{
	struct soft_channel *channel = (struct soft_channel *)ibv_channel;
	struct soft_cq *cq;

	while (!(cq = take_event(channel))) {
		if (pier_soft_wait_readable(channel->ibv.fd))
			return -1;
	}
	*ret_cq = &cq->ibv;
	*ret_cq_context = cq->ibv.cq_context;
	return 0;
}

void pier_soft_ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
	pthread_mutex_lock(&cq->mutex);
	cq->comp_events_completed += count;
	pthread_cond_signal(&cq->cond);
	pthread_mutex_unlock(&cq->mutex);
}

/* Blocks while events are not acknowledged, as ibv_destroy_cq(3) does. */
void pier_soft_retire_events(struct soft_cq *cq)
{
	struct soft_channel *channel = channel_of(cq);
	unsigned int taken;

	if (!channel)
		return;
	pthread_mutex_lock(&channel->lock);
	if (cq->events_queued > 0)
		unlink_events(channel, cq);
	cq->events_queued = 0;
	taken = cq->events_taken;
	channel->users--;
	pthread_mutex_unlock(&channel->lock);

	pthread_mutex_lock(&cq->ibv.mutex);
	while (cq->ibv.comp_events_completed != taken)
		pthread_cond_wait(&cq->ibv.cond, &cq->ibv.mutex);
	pthread_mutex_unlock(&cq->ibv.mutex);
}
