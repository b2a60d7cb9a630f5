/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <poll.h>
#include <stdio.h>

#include <pier/waiting.h>

#include "channel/cq/members.h"
#include "channel/extra/scope_failures.h"
#include "collect.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/log.h"
#include "stop.h"

enum {
	FLUSH_TIME_MS = 1000, /* how long to wait for the flushed completions */
};

int pier_modify_state(struct pier_channel *channel, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };
	int error = channel->provider->modify_qp(channel->qp, &attr, IBV_QP_STATE);

	if (error)
		pier_warning("queue pair %#x: to state %d: errno %d", channel->qp->qp_num,
			     (int)state, error);
	else
		channel->is_reset = state == IBV_QPS_RESET;
	return error;
}

static bool is_at_rest(const struct pier_channel *channel)
{
	return pier_channel_outstanding(channel) == 0 && !channel->keepalive.outstanding;
}

/* Returns false when the time is up. */
static bool sleep_until(const struct pier_channel *channel, int64_t deadline)
{
	struct pollfd fd = { .fd = pier_channel_fd(channel), .events = POLLIN };
	int timeout = pier_poll_timeout(deadline);

	return timeout > 0 && (pier_clock_poll(&fd, 1, timeout) >= 0 || errno == EINTR) &&
	       !(fd.revents & (POLLERR | POLLHUP | POLLNVAL));
}

static void collect_flush(struct pier_channel *channel)
{
	int64_t deadline = pier_deadline(FLUSH_TIME_MS);
	int count = 0;

	while (!is_at_rest(channel) && count >= 0) {
		count = pier_collect(channel);
		if (count == 0)
			count = pier_arm_completions(channel);
		if (count == 0 && !sleep_until(channel, deadline))
			return;
	}
}

/*
 * Check the whole ring: a device that lost a completion may have completed a later
 * request. Skip entries from head on, which the device refused.
 */
static void fill_in_queue(struct pier_channel *channel, struct pier_queue *queue)
{
	for (uint32_t i = 0; i <= queue->mask; i++) {
		struct pier_entry *entry = &queue->entries[i];
		uint64_t position = entry->id & PIER_ID_POSITION;
		struct pier_result flushed = { .error = -ECANCELED,
					       .status = IBV_WC_WR_FLUSH_ERR,
					       .opcode = pier_entry_opcode(entry) };

		if (pier_entry_get_state(entry) == PIER_ENTRY_UNWATCHED &&
		    position - queue->tail < queue->head - queue->tail)
			pier_note_in_scope(channel, entry->id, &flushed);
		if (pier_entry_get_state(entry) == PIER_ENTRY_WATCHED &&
		    (int64_t)(queue->head - position) > 0)
			pier_queue_keep(queue, entry, &flushed);
	}
	pier_queue_done(queue, queue->head - 1);
}

void pier_fill_in_flush(struct pier_channel *channel)
{
	channel->flushed += pier_channel_outstanding(channel);
	channel->keepalive.outstanding = false;
	fill_in_queue(channel, &channel->sends);
	fill_in_queue(channel, &channel->receives);
	if (channel->attr.cq)
		pier_cq_note_news(channel->attr.cq, channel);
}

void pier_stop_channel(struct pier_channel *channel)
{
	pier_modify_state(channel, IBV_QPS_ERR);
	collect_flush(channel);
	/*
	 * Receives of a shared queue do not count as outstanding. RESET and destroying
	 * the queue pair remove their completions from the CQ without reporting them
	 * (mlx5_cq_clean() in libmlx5), so collect them now.
	 */
	if (channel->attr.srq)
		pier_collect(channel);
	if (!is_at_rest(channel)) {
		pier_modify_state(channel, IBV_QPS_RESET);
		pier_collect(channel);
	}
	/* Even if nothing is outstanding: a completion may have been lost. */
	pier_fill_in_flush(channel);
}

int pier_channel_cancel(struct pier_channel *channel)
{
	int error = pier_check_process(&channel->object);
	char cause[128];

	if (error)
		return error;
	snprintf(cause, sizeof(cause),
		 "the channel was cancelled, and %u outstanding request%s stopped",
		 pier_channel_outstanding(channel),
		 pier_channel_outstanding(channel) == 1 ? "" : "s");
	pier_break_channel(channel, -ECANCELED, cause);
	pier_stop_channel(channel);
	return 0;
}
