/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include "fault.h"
#include "core/deadline.h"
#include "core/fd.h"

/*
 * Who sleeps on a channel's fd must be woken when something late is due. So the fd
 * is an epoll of the one beneath and of a timer, which needs no thread.
 */

static struct fault_channel *fault_channel(struct ibv_comp_channel *channel)
{
	return pier_container_of(channel, struct fault_channel, ibv);
}

static struct fault_context *context_of(const struct fault_channel *channel)
{
	return fault_context(channel->ibv.context);
}

static bool add_to_epoll(int epoll_fd, int fd)
{
	struct epoll_event event = { .events = EPOLLIN };

	return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

static bool make_non_blocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

/* Events are taken from the one beneath to see whether there are any. */
static bool join_fds(struct fault_channel *channel)
{
	channel->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	channel->ibv.fd = epoll_create1(EPOLL_CLOEXEC);
	return channel->timer_fd >= 0 && channel->ibv.fd >= 0 &&
	       make_non_blocking(channel->under->fd) &&
	       add_to_epoll(channel->ibv.fd, channel->under->fd) &&
	       add_to_epoll(channel->ibv.fd, channel->timer_fd);
}

static void free_channel(struct fault_channel *channel)
{
	pier_close_fd(channel->ibv.fd);
	pier_close_fd(channel->timer_fd);
	free(channel);
}

struct ibv_comp_channel *pier_fault_create_comp_channel(struct ibv_context *ibv)
{
	struct fault_context *context = fault_context(ibv);
	struct fault_channel *channel;
	int error;

	if (pier_fault_fails(&context->plan, FAULT_CREATE_COMP_CHANNEL))
		return NULL;
	channel = calloc(1, sizeof(*channel));
	if (!channel)
		return NULL;
	channel->ibv.context = ibv;
	channel->ibv.fd = channel->timer_fd = -1;
	pier_list_init(&channel->cqs);
	channel->under = context->beneath->create_comp_channel(context->under);
	if (channel->under && join_fds(channel))
		return &channel->ibv;
	error = errno;
	if (channel->under)
		context->beneath->destroy_comp_channel(channel->under);
	free_channel(channel);
	errno = error;
	return NULL;
}

int pier_fault_destroy_comp_channel(struct ibv_comp_channel *ibv)
{
	struct fault_channel *channel = fault_channel(ibv);
	struct fault_context *context = context_of(channel);
	int error = pier_fault_fails(&context->plan, FAULT_DESTROY_COMP_CHANNEL);

	if (!error)
		error = context->beneath->destroy_comp_channel(channel->under);
	if (!error)
		free_channel(channel);
	return error;
}

static int64_t earlier(int64_t one, int64_t other)
{
	return other < one ? other : one;
}

/* What waits for polls is due at once: whoever sleeps does not poll. */
static int64_t due_time(const struct fault_cq *cq, const struct fault_completion *one)
{
	return one->due_polls > cq->polls ? 0 : one->due;
}

/* When somebody must wake up for this queue; INT64_MAX: need not. */
static int64_t next_due(const struct fault_cq *cq)
{
	int64_t next = cq->ask_at ? cq->ask_at : INT64_MAX;

	for (uint32_t i = 0; i < cq->count && cq->armed && !cq->ask_at; i++)
		next = earlier(next, due_time(cq, &cq->waiting[i]));
	pier_list_for_each(link, &fault_context(cq->ibv.context)->qps) {
		const struct fault_qp *qp = pier_container_of(link, const struct fault_qp,
							      link);

		if (qp->ibv.send_cq == &cq->ibv || qp->ibv.recv_cq == &cq->ibv)
			next = earlier(next, fault_death(qp));
	}
	return next;
}

static void set_channel_timer(struct fault_channel *channel)
{
	struct itimerspec when = { 0 };
	int64_t next = INT64_MAX;

	pier_list_for_each(link, &channel->cqs)
		next = earlier(next,
			       next_due(pier_container_of(link, struct fault_cq, link)));
	if (next < INT64_MAX) {
		/* 0 would stop it. */
		next = next > 0 ? next : 1;
		when.it_value.tv_sec = next / 1000000000;
		when.it_value.tv_nsec = next % 1000000000;
	}
	timerfd_settime(channel->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

void pier_fault_set_timer(struct ibv_cq *ibv)
{
	if (ibv->channel)
		set_channel_timer(fault_channel(ibv->channel));
}

/* The device was not asked for an event; now it is, and what came already counts. */
static void ask_late(struct fault_cq *cq, int64_t now)
{
	if (!cq->ask_at || now < cq->ask_at)
		return;
	cq->ask_at = 0;
	ibv_req_notify_cq(cq->under, cq->ask_solicited);
	pier_fault_pull(cq);
}

static bool has_event(const struct fault_cq *cq, int64_t now)
{
	if (!cq->armed || cq->ask_at)
		return false;
	for (uint32_t i = 0; i < cq->count; i++) {
		if (due_time(cq, &cq->waiting[i]) <= now)
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

/* One that the timer has for somebody, or NULL. */
static struct fault_cq *take_due_event(struct fault_channel *channel)
{
	struct fault_cq *found = NULL;
	int64_t now = pier_now();

	pier_fault_bury(context_of(channel), now);
	pier_list_for_each(link, &channel->cqs) {
		struct fault_cq *cq = pier_container_of(link, struct fault_cq, link);

		ask_late(cq, now);
		if (!found && has_event(cq, now))
			found = cq;
	}
	if (found)
		give_event(found);
	set_channel_timer(channel);
	return found;
}

/* One of the device, or NULL with errno; acknowledged here, and waited for here. */
static struct fault_cq *take_device_event(struct fault_channel *channel)
{
	const struct pier_provider *beneath = context_of(channel)->beneath;
	struct ibv_cq *under;
	void *cq_context;

	errno = 0;
	if (beneath->get_cq_event(channel->under, &under, &cq_context))
		return NULL;
	beneath->ack_cq_events(under, 1);
	pthread_mutex_lock(&context_of(channel)->lock);
	give_event(cq_context);
	pthread_mutex_unlock(&context_of(channel)->lock);
	return cq_context;
}

static struct fault_cq *take_event(struct fault_channel *channel)
{
	struct fault_cq *cq;

	pthread_mutex_lock(&context_of(channel)->lock);
	cq = take_due_event(channel);
	pthread_mutex_unlock(&context_of(channel)->lock);
	return cq ? cq : take_device_event(channel);
}

/* 0 when there may be something again; -1 with errno. */
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

	if (pier_fault_fails(&context_of(channel)->plan, FAULT_GET_CQ_EVENT))
		return -1;
	while (!(cq = take_event(channel))) {
		if (errno != EAGAIN || wait_for_event(channel))
			return -1;
	}
	*ret_cq = &cq->ibv;
	*ret_cq_context = cq->ibv.cq_context;
	return 0;
}

void pier_fault_ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
	pthread_mutex_lock(&cq->mutex);
	cq->comp_events_completed += count;
	pthread_cond_signal(&cq->cond);
	pthread_mutex_unlock(&cq->mutex);
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
