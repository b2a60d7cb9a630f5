/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include <pier/waiting.h>

#include "channel/setup/attr.h"
#include "channel.h"
#include "channel/extra/keepalive.h"
#include "channel/extra/scope.h"
#include "spin.h"
#include "status.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/log.h"

enum {
	FLUSH_TIME_MS = 1000, /* for the completions of a stopped queue pair */
};

int pier_channel_timeout(const struct pier_channel *channel, int timeout_ms,
			 int *ret_timeout_ms)
{
	if (timeout_ms < PIER_TIMEOUT_DEFAULT)
		return pier_fail(EINVAL, "timeout_ms %d is negative", timeout_ms);
	*ret_timeout_ms = timeout_ms == PIER_TIMEOUT_DEFAULT ? channel->attr.timeout_ms
							     : timeout_ms;
	return 0;
}

/* Sleep until the fd of the channel is readable; 0, -ETIMEDOUT or another error. */
static int sleep_until(struct pier_channel *channel, int64_t deadline)
{
	struct pollfd fd = { .fd = channel->events->fd, .events = POLLIN };
	int timeout = pier_poll_timeout(deadline);

	if (timeout == 0)
		return -ETIMEDOUT;
	if (poll(&fd, 1, pier_sleep_ms(channel, timeout)) < 0 && errno != EINTR)
		return pier_fail(errno, "poll the completion channel: %s",
				 strerror(errno));
	return 0;
}

/* What is waited for. */
struct wish {
	bool (*has_come)(const struct pier_channel *channel, const struct wish *wish);
	const struct pier_entry *entry;
	uint32_t count;
	uint64_t sends, receives;
};

static bool entry_is_done(const struct pier_channel *channel, const struct wish *wish)
{
	(void)channel;
	return pier_entry_get_state(wish->entry) != PIER_ENTRY_WATCHED;
}

static bool has_room(const struct pier_channel *channel, const struct wish *wish)
{
	return pier_queue_room(&channel->sends) >= wish->count;
}

static bool are_over(const struct pier_channel *channel, const struct wish *wish)
{
	return (int64_t)(channel->sends.tail - wish->sends) >= 0 &&
	       (int64_t)(channel->receives.tail - wish->receives) >= 0;
}

static bool has_message(const struct pier_channel *channel, const struct wish *wish)
{
	(void)wish;
	return channel->first_message || channel->broken;
}

/* 0 when it has come, or -ETIMEDOUT. */
static int wait_for(struct pier_channel *channel, const struct wish *wish,
		    int64_t deadline)
{
	struct pier_spin spin = pier_begin_spin(channel->attr.waiting,
						channel->attr.spin_us, deadline);
	int count = 0, error = 0;

	while (!wish->has_come(channel, wish) && pier_spin_again(&spin)) {
		count = pier_collect(channel);
		if (count < 0)
			return count;
		if (count == 0 && channel->idle_calls)
			pier_look_after_peer_rarely(channel);
	}
	while (!wish->has_come(channel, wish) && !error) {
		count = pier_channel_arm(channel);
		if (count < 0)
			return count;
		if (!wish->has_come(channel, wish))
			error = sleep_until(channel, deadline);
	}
	return wish->has_come(channel, wish) ? 0 : error;
}

int pier_wait_for_room(struct pier_channel *channel, uint32_t count, int64_t deadline)
{
	return wait_for(channel, &(struct wish){ .has_come = has_room, .count = count },
			deadline);
}

int pier_wait_for_positions(struct pier_channel *channel, uint64_t sends,
			    uint64_t receives, int64_t deadline)
{
	return wait_for(channel,
			&(struct wish){ .has_come = are_over,
					.sends = sends,
					.receives = receives },
			deadline);
}

int pier_wait_for_message(struct pier_channel *channel, int64_t deadline)
{
	return wait_for(channel, &(struct wish){ .has_come = has_message }, deadline);
}

int pier_channel_set_waiting(struct pier_channel *channel, enum pier_waiting waiting,
			     uint32_t spin_us)
{
	int error = pier_check_process(&channel->object);

	if (!error)
		error = pier_check_waiting(waiting, spin_us);
	if (error)
		return error;
	channel->attr.waiting = waiting;
	channel->attr.spin_us = spin_us;
	return 0;
}

uint32_t pier_channel_send_room(const struct pier_channel *channel)
{
	return pier_queue_room(&channel->sends);
}

int pier_channel_wait_room(struct pier_channel *channel, uint32_t count, int timeout_ms)
{
	int error = pier_check_process(&channel->object);

	if (!error)
		error = pier_channel_timeout(channel, timeout_ms, &timeout_ms);
	if (error)
		return error;
	if (count == 0 || count > channel->sends.depth)
		return pier_fail(EINVAL, "room for %u requests; the send queue has %u",
				 count, channel->sends.depth);
	if (!channel->broken)
		error = pier_wait_for_room(channel, count, pier_deadline(timeout_ms));
	if (channel->broken)
		return pier_fail_broken(channel);
	if (error == -ETIMEDOUT)
		return pier_fail(ETIMEDOUT,
				 "no room for %u requests within %d ms: %u are "
				 "outstanding",
				 count, timeout_ms,
				 pier_queue_outstanding(&channel->sends));
	return error;
}

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

static void collect_flush(struct pier_channel *channel)
{
	int64_t deadline = pier_deadline(FLUSH_TIME_MS);
	int count = 0;

	while (!is_at_rest(channel) && count >= 0) {
		count = pier_channel_arm(channel);
		if (count == 0 && sleep_until(channel, deadline) != 0)
			return;
	}
}

/*
 * All of the ring: a device that lost one may have completed another behind it. But not
 * what stands from head on, which the device refused.
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
}

void pier_stop_channel(struct pier_channel *channel)
{
	pier_modify_state(channel, IBV_QPS_ERR);
	collect_flush(channel);
	/*
	 * What arrived in receives of a shared queue is not among what is outstanding,
	 * and is taken out of the CQ by RESET and by destroying the queue pair, without
	 * telling whose receives those were (mlx5_cq_clean() in libmlx5).
	 */
	if (channel->attr.srq)
		pier_collect(channel);
	if (!is_at_rest(channel)) {
		pier_modify_state(channel, IBV_QPS_RESET);
		pier_collect(channel);
	}
	/* Also where nothing is outstanding: a completion may have been lost. */
	pier_fill_in_flush(channel);
}

int pier_channel_cancel(struct pier_channel *channel)
{
	int error = pier_check_process(&channel->object);
	char cause[128];

	if (error)
		return error;
	snprintf(cause, sizeof(cause),
		 "pier_channel_cancel() stopped the %u requests that were outstanding",
		 pier_channel_outstanding(channel));
	pier_break_channel(channel, -ECANCELED, cause);
	pier_stop_channel(channel);
	return 0;
}

/*
 * Nobody waits for the request any more, and the caller wants its memory back:
 * the time was up, or waiting failed, which leaves its sentence.
 */
static int give_up(struct pier_channel *channel, struct pier_work work, int error,
		   int timeout_ms, struct pier_result *ret_result)
{
	const struct pier_queue *queue = pier_queue_of(channel, work.id);
	const struct pier_entry *entry = pier_queue_find(queue, work.id);
	char cause[512];

	if (error == -ETIMEDOUT)
		snprintf(cause, sizeof(cause),
			 "%s did not complete within %d ms; everything outstanding was "
			 "stopped",
			 pier_opcode_name(pier_entry_opcode(entry)), timeout_ms);
	else
		snprintf(cause, sizeof(cause), "%s", pier_error_message());
	pier_break_channel(channel, error, cause);
	pier_stop_channel(channel);
	pier_work_poll(channel, work, ret_result);
	return pier_fail(-error, "%s", cause);
}

int pier_wait_until(struct pier_channel *channel, struct pier_work work, int64_t deadline,
		    int timeout_ms, struct pier_result *ret_result)
{
	struct wish wish = { .has_come = entry_is_done,
			     .entry = pier_queue_find(pier_queue_of(channel, work.id),
						      work.id) };
	struct pier_result result;
	int error = wait_for(channel, &wish, deadline);

	if (error)
		return give_up(channel, work, error, timeout_ms, ret_result);
	pier_work_poll(channel, work, &result);
	if (ret_result)
		*ret_result = result;
	return result.error;
}

int pier_work_wait(struct pier_channel *channel, struct pier_work work, int timeout_ms,
		   struct pier_result *ret_result)
{
	struct pier_result result;
	int error, done;

	error = pier_check_process(&channel->object);
	if (!error)
		error = pier_channel_timeout(channel, timeout_ms, &timeout_ms);
	if (error)
		return error;
	done = pier_work_poll(channel, work, &result);
	if (done == 0)
		return pier_wait_until(channel, work, pier_deadline(timeout_ms),
				       timeout_ms, ret_result);
	if (done == -ESTALE)
		return done;
	if (done < 0)
		return give_up(channel, work, done, timeout_ms, ret_result);
	if (ret_result)
		*ret_result = result;
	return result.error;
}
