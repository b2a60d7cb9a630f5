/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include "channel.h"
#include "core/clock.h"
#include "core/fd.h"
#include "fault.h"

/*
 * A late completion must wake a thread that sleeps on a channel's fd. So the fd is an
 * epoll of the device's channel and of a timer, which needs no thread.
 */

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

/*
 * The device's channel is non-blocking: events are taken from it to see whether there
 * are any.
 */
static bool join_fds(struct fault_comp_channel *channel)
{
	channel->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	channel->ibv.fd = epoll_create1(EPOLL_CLOEXEC);
	return channel->timer_fd >= 0 && channel->ibv.fd >= 0 &&
	       make_non_blocking(channel->under->fd) &&
	       add_to_epoll(channel->ibv.fd, channel->under->fd) &&
	       add_to_epoll(channel->ibv.fd, channel->timer_fd);
}

static void free_channel(struct fault_comp_channel *channel)
{
	pier_close_fd(channel->ibv.fd);
	pier_close_fd(channel->timer_fd);
	free(channel);
}

struct ibv_comp_channel *pier_fault_create_comp_channel(struct ibv_context *ibv)
{
	struct fault_context *context = fault_context(ibv);
	struct fault_comp_channel *channel = fault_allocate(
		ibv, FAULT_CREATE_COMP_CHANNEL, sizeof(*channel));
	int error;

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
	struct fault_comp_channel *channel = fault_comp_channel(ibv);
	struct fault_context *context = fault_context(channel->ibv.context);
	int error = fault_call(context, FAULT_DESTROY_COMP_CHANNEL, destroy_comp_channel,
			       channel->under);

	if (!error)
		free_channel(channel);
	return error;
}

static int64_t earlier_time(int64_t one, int64_t other)
{
	return other < one ? other : one;
}

/* When a waiting thread must wake up for this queue; INT64_MAX: it need not. */
static int64_t next_due_time(const struct fault_cq *cq)
{
	int64_t next = cq->ask_at ? cq->ask_at : INT64_MAX;

	for (uint32_t i = 0; i < cq->count && cq->armed && !cq->ask_at; i++)
		next = earlier_time(next, fault_due_time(cq, &cq->waiting[i]));
	pier_list_for_each(const struct fault_qp, qp,
			   &fault_context(cq->ibv.context)->qps, link) {
		if (qp->ibv.send_cq == &cq->ibv || qp->ibv.recv_cq == &cq->ibv)
			next = earlier_time(next, fault_death(qp));
	}
	return next;
}

void pier_fault_set_channel_timer(struct fault_comp_channel *channel)
{
	struct itimerspec when = { 0 };
	int64_t next = INT64_MAX;

	pier_list_for_each(const struct fault_cq, cq, &channel->cqs, link)
		next = earlier_time(next, next_due_time(cq));
	if (next < INT64_MAX) {
		int64_t left = next - pier_now();

		/* 0 would stop the timer. */
		left = left > 0 ? left : 1;
		when.it_value.tv_sec = left / 1000000000;
		when.it_value.tv_nsec = left % 1000000000;
	}
	timerfd_settime(channel->timer_fd, 0, &when, NULL);
}

void pier_fault_set_timer(struct ibv_cq *ibv)
{
	if (ibv->channel)
		pier_fault_set_channel_timer(fault_comp_channel(ibv->channel));
}
