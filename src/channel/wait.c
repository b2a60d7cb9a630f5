/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "channel.h"
#include "status.h"
#include "util/deadline.h"
#include "util/error.h"
#include "util/log.h"

enum {
	BRIEF_POLLS = 100,    /* some microseconds, before asking for an event */
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
	if (poll(&fd, 1, timeout) < 0 && errno != EINTR)
		return pier_fail(errno, "poll the completion channel: %s",
				 strerror(errno));
	return 0;
}

/* That the request has completed; or, without one, that the send queue has room. */
static bool has_come(const struct pier_channel *channel, const struct pier_slot *slot)
{
	return slot ? slot->state != PIER_SLOT_POSTED
		    : pier_has_slots(&channel->slots, false, 1);
}

/* 0 when it has come, or -ETIMEDOUT. */
static int wait_for(struct pier_channel *channel, const struct pier_slot *slot,
		    int64_t deadline)
{
	int count = 0, error = 0;

	for (int i = 0; i < BRIEF_POLLS && !has_come(channel, slot); i++) {
		count = pier_collect(channel);
		if (count < 0)
			return count;
	}
	while (!has_come(channel, slot) && !error) {
		count = pier_arm_channel(channel);
		if (count < 0)
			return count;
		if (!has_come(channel, slot))
			error = sleep_until(channel, deadline);
	}
	return has_come(channel, slot) ? 0 : error;
}

int pier_wait_for_room(struct pier_channel *channel, int64_t deadline)
{
	return wait_for(channel, NULL, deadline);
}

static void modify_state(struct pier_channel *channel, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };
	int error = channel->provider->modify_qp(channel->qp, &attr, IBV_QP_STATE);

	if (error)
		pier_warning("queue pair %#x: to state %d: errno %d", channel->qp->qp_num,
			     (int)state, error);
}

static void collect_flush(struct pier_channel *channel)
{
	int64_t deadline = pier_deadline(FLUSH_TIME_MS);
	int count = 0;

	while (channel->slots.outstanding > 0 && count >= 0) {
		count = pier_arm_channel(channel);
		if (count == 0 && sleep_until(channel, deadline) != 0)
			return;
	}
}

/* No completion will come any more: those that are missing are made up. */
static void fill_in_flush(struct pier_channel *channel)
{
	for (uint32_t i = 0; i < channel->slots.count; i++) {
		struct pier_slot *slot = &channel->slots.slots[i];
		struct pier_result flushed = { .error = -ECANCELED,
					       .status = IBV_WC_WR_FLUSH_ERR,
					       .opcode = slot->opcode };

		if (slot->state == PIER_SLOT_POSTED || slot->state == PIER_SLOT_UNWATCHED)
			pier_slot_done(&channel->slots, slot, &flushed);
	}
}

void pier_stop_channel(struct pier_channel *channel)
{
	modify_state(channel, IBV_QPS_ERR);
	collect_flush(channel);
	if (channel->slots.outstanding == 0)
		return;
	modify_state(channel, IBV_QPS_RESET);
	pier_collect(channel);
	fill_in_flush(channel);
}

/*
 * Nobody waits for the request any more, and the caller wants its memory back:
 * the time was up, or waiting failed, which leaves its sentence.
 */
static int give_up(struct pier_channel *channel, struct pier_slot *slot, int error,
		   int timeout_ms, struct pier_result *ret_result)
{
	char cause[512];

	if (error == -ETIMEDOUT)
		snprintf(cause, sizeof(cause),
			 "%s did not complete within %d ms; everything outstanding was "
			 "stopped",
			 pier_opcode_name(slot->opcode), timeout_ms);
	else
		snprintf(cause, sizeof(cause), "%s", pier_last_error());
	pier_break_channel(channel, error, cause);
	pier_stop_channel(channel);
	pier_poll_work(channel, (struct pier_work){ slot->id }, ret_result);
	return pier_fail(-error, "%s", cause);
}

int pier_wait_until(struct pier_channel *channel, struct pier_work work, int64_t deadline,
		    int timeout_ms, struct pier_result *ret_result)
{
	struct pier_slot *slot = pier_find_slot(&channel->slots, work.id);
	struct pier_result result;
	int error = wait_for(channel, slot, deadline);

	if (error)
		return give_up(channel, slot, error, timeout_ms, ret_result);
	pier_poll_work(channel, work, &result);
	if (ret_result)
		*ret_result = result;
	return result.error;
}

int pier_wait(struct pier_channel *channel, struct pier_work work, int timeout_ms,
	      struct pier_result *ret_result)
{
	struct pier_result result;
	int error, done;

	error = pier_check_process(&channel->object);
	if (!error)
		error = pier_channel_timeout(channel, timeout_ms, &timeout_ms);
	if (error)
		return error;
	done = pier_poll_work(channel, work, &result);
	if (done == 0)
		return pier_wait_until(channel, work, pier_deadline(timeout_ms),
				       timeout_ms, ret_result);
	if (done == -ESTALE)
		return done;
	if (done < 0)
		return give_up(channel, pier_find_slot(&channel->slots, work.id), done,
			       timeout_ms, ret_result);
	if (ret_result)
		*ret_result = result;
	return result.error;
}
