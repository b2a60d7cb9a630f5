/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>

#include <pier/recovery.h>

#include "channel/collect.h"
#include "channel/cq/members.h"
#include "channel/stop.h"
#include "core/deadline.h"
#include "core/error.h"
#include "keepalive.h"

enum {
	POLLS_PER_LOOK =
		64, /* some microseconds; reading the clock costs as much as a poll */
};

/*
 * An outstanding request fails by itself if the peer is gone. A channel that is broken
 * or not connected has no peer.
 */
static bool is_idle(const struct pier_channel *channel)
{
	return channel->attr.keepalive_ms && channel->state == PIER_CHANNEL_CONNECTED &&
	       !channel->broken && !channel->keepalive.outstanding &&
	       pier_queue_outstanding(&channel->sends) == 0 &&
	       !pier_inherited(&channel->object);
}

/*
 * When a keepalive is due. Completions are not timed, since every completion would pay
 * for that. Those since the last check count as of now.
 */
static int64_t keepalive_due(struct pier_channel *channel, int64_t now)
{
	struct pier_keepalive *keepalive = &channel->keepalive;
	uint64_t completed = channel->sends.tail + channel->receives.tail;

	if (keepalive->since == 0 || keepalive->completed != completed) {
		keepalive->completed = completed;
		keepalive->since = now;
	}
	return keepalive->since + (int64_t)channel->attr.keepalive_ms * 1000000;
}

/* The checks run within polls, so a stop is finished by a later one: none waits. */
static bool finish_stop(struct pier_channel *channel, int64_t now)
{
	struct pier_keepalive *keepalive = &channel->keepalive;

	if (!keepalive->stops_at ||
	    !pier_finish_stop(channel, now >= keepalive->stops_at))
		return false;
	keepalive->stops_at = 0;
	return true;
}

/* The peer cannot be reached: stop waiting for it. */
static void break_unreachable(struct pier_channel *channel, int error)
{
	char cause[sizeof(channel->cause)];

	if (!channel->provider->explains_posts)
		pier_clear_error();
	error = pier_fail_because(error, "post a keepalive");
	snprintf(cause, sizeof(cause), "%s; everything outstanding was stopped",
		 pier_error_message());
	pier_break_channel(channel, error, cause);
	channel->keepalive.stops_at = pier_begin_stop(channel);
}

/*
 * Post a write without bytes: neither key nor address matters (IBTA 9.7.4.1.5), it uses
 * no receive, and the queue pair has a place for it beyond the caller's.
 */
static void post_keepalive(struct pier_channel *channel)
{
	struct ibv_send_wr wr = { .wr_id = PIER_ID_KEEPALIVE,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED },
			   *bad;
	int error = ibv_post_send(channel->qp, &wr, &bad);

	if (error)
		break_unreachable(channel, error);
	else
		channel->keepalive.outstanding = true;
}

/* Returns whether the channel has been stopped. */
static bool check_channel(struct pier_channel *channel, int64_t now)
{
	if (is_idle(channel) && now >= keepalive_due(channel, now))
		post_keepalive(channel);
	return finish_stop(channel, now);
}

/* When the channel has to be checked again, after it was checked now. */
static int64_t next_check(struct pier_channel *channel, int64_t now)
{
	int64_t next = now + (int64_t)channel->attr.keepalive_ms * 1000000;
	int64_t due = is_idle(channel)		    ? keepalive_due(channel, now)
		      : channel->keepalive.stops_at ? channel->keepalive.stops_at
						    : INT64_MAX;

	/* It may be idle from now on. */
	return due < next ? due : next;
}

int pier_keepalive_check_members(struct pier_cq *cq)
{
	int64_t now = pier_now(), next = INT64_MAX, at;
	int stopped = 0;

	if (now < cq->keepalive_at)
		return 0;
	for (size_t i = 0; i < (size_t)1 << cq->bucket_bits; i++) {
		for (struct pier_channel *channel = cq->buckets[i]; channel;
		     channel = channel->cq_next) {
			if (!channel->attr.keepalive_ms)
				continue;
			stopped += check_channel(channel, now);
			at = next_check(channel, now);
			next = at < next ? at : next;
		}
	}
	cq->keepalive_at = next;
	return stopped;
}

int pier_keepalive_check(struct pier_channel *channel)
{
	int stopped = check_channel(channel, pier_now());

	if (channel->attr.cq && channel->attr.cq->keepalive_count)
		stopped += pier_keepalive_check_members(channel->attr.cq);
	return stopped;
}

void pier_keepalive_check_rarely(struct pier_channel *channel)
{
	if (++channel->keepalive.polls % POLLS_PER_LOOK == 0)
		pier_keepalive_check(channel);
}

int pier_cq_next_ms(const struct pier_cq *cq)
{
	PIER_REFUSE_NULL(cq);
	return cq->keepalive_count && !pier_inherited(&cq->object)
		       ? pier_poll_timeout(cq->keepalive_at)
		       : -1;
}

int pier_channel_next_ms(struct pier_channel *channel)
{
	PIER_REFUSE_NULL(channel);
	if (channel->attr.cq)
		return pier_cq_next_ms(channel->attr.cq);
	if (channel->keepalive.stops_at)
		return pier_poll_timeout(channel->keepalive.stops_at);
	return is_idle(channel) ? pier_poll_timeout(keepalive_due(channel, pier_now()))
				: -1;
}

int pier_collect_while_idle(struct pier_channel *channel)
{
	int count = pier_collect(channel);

	if (count == 0 && channel->idle_calls)
		pier_keepalive_check_rarely(channel);
	return count;
}
