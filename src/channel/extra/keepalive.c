/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>

#include <pier/recovery.h>

#include "channel/stop.h"
#include "core/deadline.h"
#include "core/error.h"
#include "keepalive.h"

enum {
	POLLS_PER_LOOK = 64, /* some microseconds; reading the clock is one poll more */
};

/*
 * A request that is outstanding fails by itself if the peer is gone. What is broken or
 * not connected has no peer.
 */
static bool is_idle(const struct pier_channel *channel)
{
	return channel->attr.keepalive_ms && channel->state == PIER_CHANNEL_CONNECTED &&
	       !channel->broken && !channel->keepalive.outstanding &&
	       pier_queue_outstanding(&channel->sends) == 0 &&
	       !pier_inherited(&channel->object);
}

/*
 * When the peer has to be looked after. Completions are not timed, since that would be
 * paid for by each: those that have come since the last look count as of now.
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

/* Who cannot be asked any more is not waited for. */
static void break_unreachable(struct pier_channel *channel, int error)
{
	char cause[sizeof(channel->cause)];

	if (!channel->provider->explains_posts)
		pier_clear_error();
	error = pier_fail_because(error, "post a keepalive");
	snprintf(cause, sizeof(cause), "%s; everything outstanding was stopped",
		 pier_error_message());
	pier_break_channel(channel, error, cause);
	pier_stop_channel(channel);
}

/*
 * A write without bytes: neither key nor address counts (IBTA 9.7.4.1.5), it takes no
 * receive, and the queue pair has a place for it that is not the caller's.
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

void pier_look_after_peer(struct pier_channel *channel)
{
	int64_t now;

	if (!is_idle(channel))
		return;
	now = pier_now();
	if (now >= keepalive_due(channel, now))
		post_keepalive(channel);
}

void pier_look_after_peer_rarely(struct pier_channel *channel)
{
	if (++channel->keepalive.polls % POLLS_PER_LOOK == 0)
		pier_look_after_peer(channel);
}

int pier_channel_next_ms(struct pier_channel *channel)
{
	return is_idle(channel) ? pier_poll_timeout(keepalive_due(channel, pier_now()))
				: -1;
}
