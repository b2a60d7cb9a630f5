/* SPDX-License-Identifier: BSD-3-Clause */
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

/* The peer cannot be reached: stop waiting for it. */
static void break_unreachable(struct pier_channel *channel, int error)
{
	if (!channel->provider->explains_posts)
		pier_clear_error();
	error = pier_fail_because(error, "post a keepalive");
	pier_stop_because(channel, error, "%s; everything outstanding was stopped",
			  pier_error_message());
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

/* Returns when the channel has to be checked again. */
static int64_t check_member(struct pier_channel *channel, int64_t now)
{
	int64_t interval = (int64_t)channel->attr.keepalive_ms * 1000000;
	int64_t due = is_idle(channel) ? keepalive_due(channel, now) : INT64_MAX;

	if (due <= now)
		post_keepalive(channel);
	/* It may be idle from now on. */
	return due > now && due < now + interval ? due : now + interval;
}

void pier_keepalive_check_members(struct pier_cq *cq)
{
	int64_t now = pier_now(), next = INT64_MAX, at;

	if (now < cq->keepalive_at)
		return;
	for (size_t i = 0; i < (size_t)1 << cq->bucket_bits; i++) {
		for (struct pier_channel *channel = cq->buckets[i]; channel;
		     channel = channel->cq_next) {
			at = channel->attr.keepalive_ms ? check_member(channel, now)
							: INT64_MAX;
			next = at < next ? at : next;
		}
	}
	cq->keepalive_at = next;
}

void pier_keepalive_check(struct pier_channel *channel)
{
	int64_t now = pier_now();

	if (is_idle(channel) && now >= keepalive_due(channel, now))
		post_keepalive(channel);
	if (channel->attr.cq && channel->attr.cq->keepalive_count)
		pier_keepalive_check_members(channel->attr.cq);
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
