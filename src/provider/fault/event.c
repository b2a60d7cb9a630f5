/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>

#include "event.h"
#include "channel.h"
#include "core/clock.h"
#include "cq.h"
#include "failure.h"
#include "fault.h"

/* Asks the device for an event late. What came until then counts already. */
static void ask_device_late(struct fault_cq *cq, int64_t now)
{
	if (!cq->ask_at || now < cq->ask_at)
		return;
	cq->ask_at = 0;
	ibv_req_notify_cq(cq->under, cq->ask_solicited);
	pier_fault_take_completions(cq);
}

static bool has_event(const struct fault_cq *cq, int64_t now)
{
	if (!cq->armed || cq->ask_at)
		return false;
	for (uint32_t i = 0; i < cq->count; i++) {
		if (fault_due_time(cq, &cq->waiting[i]) <= now)
			return true;
	}
	return false;
}

static void give_event(struct fault_cq *cq)
{
	cq->armed = false;
	pthread_mutex_lock(&cq->ibv.mutex);
	cq->events++;
	pthread_mutex_unlock(&cq->ibv.mutex);
}

/* A CQ whose event the timer announced, or NULL. */
static struct fault_cq *take_due_event(struct fault_channel *channel)
{
	struct fault_cq *found = NULL;
	int64_t now = pier_now();

	pier_fault_fail_dead_peers(fault_context(channel->ibv.context), now);
	pier_list_for_each(link, &channel->cqs) {
		struct fault_cq *cq = pier_container_of(link, struct fault_cq, link);

		ask_device_late(cq, now);
		if (!found && has_event(cq, now))
			found = cq;
	}
	if (found)
		give_event(found);
	pier_fault_set_channel_timer(channel);
	return found;
}

/*
 * A CQ with an event of the device, or NULL with errno. The event is acknowledged here;
 * destroying the wrapping CQ waits for the acknowledgement of its own.
 */
static struct fault_cq *take_device_event(struct fault_channel *channel)
{
	const struct pier_provider *beneath =
		fault_context(channel->ibv.context)->beneath;
	struct ibv_cq *under;
	void *cq_context;

	errno = 0;
	if (beneath->get_cq_event(channel->under, &under, &cq_context))
		return NULL;
	beneath->ack_cq_events(under, 1);
	pthread_mutex_lock(&fault_context(channel->ibv.context)->lock);
	give_event(cq_context);
	pthread_mutex_unlock(&fault_context(channel->ibv.context)->lock);
	return cq_context;
}

static struct fault_cq *take_event(struct fault_channel *channel)
{
	struct fault_cq *cq;

	pthread_mutex_lock(&fault_context(channel->ibv.context)->lock);
	cq = take_due_event(channel);
	pthread_mutex_unlock(&fault_context(channel->ibv.context)->lock);
	return cq ? cq : take_device_event(channel);
}

/* 0: there may be an event again; -1 with errno. */
static int wait_for_event(const struct fault_channel *channel)
{
	struct pollfd readable = { .fd = channel->ibv.fd, .events = POLLIN };
	int flags = fcntl(channel->ibv.fd, F_GETFL);

	if (flags < 0)
		return -1;
	if (flags & O_NONBLOCK) {
		errno = EAGAIN;
		return -1;
	}
	return poll(&readable, 1, -1) < 0 ? -1 : 0;
}

int pier_fault_get_cq_event(struct ibv_comp_channel *ibv, struct ibv_cq **ret_cq,
			    void **ret_cq_context)
{
	struct fault_channel *channel = fault_channel(ibv);
	struct fault_cq *cq;

	if (pier_fault_fails(&fault_context(channel->ibv.context)->plan,
			     FAULT_GET_CQ_EVENT))
		return -1;
	while (!(cq = take_event(channel))) {
		if (errno != EAGAIN || wait_for_event(channel))
			return -1;
	}
	*ret_cq = &cq->ibv;
	*ret_cq_context = cq->ibv.cq_context;
	return 0;
}

int pier_fault_req_notify_cq(struct ibv_cq *ibv, int solicited_only)
{
	struct fault_cq *cq = fault_cq(ibv);
	struct fault_context *context = fault_context(ibv->context);
	const struct pier_fault_rule *late;
	int error;

	pthread_mutex_lock(&context->lock);
	error = pier_fault_fails(&context->plan, FAULT_REQ_NOTIFY_CQ);
	late = pier_fault_strikes(&context->plan, FAULT_NOTIFY_LATE, FAULT_REQ_NOTIFY_CQ);
	if (!error && late) {
		cq->ask_at = pier_now() + (int64_t)late->value;
		cq->ask_solicited = solicited_only;
	} else if (!error && !cq->ask_at) {
		error = ibv_req_notify_cq(cq->under, solicited_only);
	}
	cq->armed |= !error;
	pier_fault_set_timer(ibv);
	pthread_mutex_unlock(&context->lock);
	return error;
}
