/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>

#include <pier/waiting.h>

#include "channel/setup/attr.h"
#include "core/deadline.h"
#include "core/error.h"
#include "poll.h"
#include "status.h"
#include "stop.h"
#include "wait.h"
#include "work_wait.h"

/* A wait on one channel. */
struct work_wait {
	struct pier_channel *channel;
	bool (*holds)(const struct work_wait *wait);
	const struct pier_entry *entry;
	uint32_t count;
	uint64_t sends, receives;
};

static bool entry_is_done(const struct work_wait *wait)
{
	return pier_entry_get_state(wait->entry) != PIER_ENTRY_WATCHED;
}

static bool has_room(const struct work_wait *wait)
{
	return pier_queue_room(&wait->channel->sends) >= wait->count;
}

static bool are_over(const struct work_wait *wait)
{
	return (int64_t)(wait->channel->sends.tail - wait->sends) >= 0 &&
	       (int64_t)(wait->channel->receives.tail - wait->receives) >= 0;
}

static bool has_message(const struct work_wait *wait)
{
	return wait->channel->first_message || wait->channel->broken;
}

static int check_condition(void *subject)
{
	const struct work_wait *wait = subject;

	return wait->holds(wait) ? PIER_CONDITION_HOLDS : PIER_CONDITION_PENDING;
}

static int collect_and_keep_alive(void *subject)
{
	const struct work_wait *wait = subject;

	return pier_collect_while_idle(wait->channel);
}

static int pass_channel(void *subject, struct pier_wait_pass *pass)
{
	const struct work_wait *wait = subject;

	return pier_wait_pass_channel(pass, wait->channel);
}

/* Returns 0, -ETIMEDOUT without a sentence, or another error. */
static int wait_for(struct work_wait *wait, int64_t deadline)
{
	struct pollfd fd;
	const struct pier_wait_condition condition = {
		.check = check_condition,
		.collect = collect_and_keep_alive,
		.pass = pass_channel,
		.subject = wait,
		.fds = &fd,
	};

	return pier_wait_until(&condition, deadline);
}

int pier_wait_for_room(struct pier_channel *channel, uint32_t count, int64_t deadline)
{
	struct work_wait wait = { .channel = channel, .holds = has_room, .count = count };

	return wait_for(&wait, deadline);
}

int pier_wait_for_positions(struct pier_channel *channel, uint64_t sends,
			    uint64_t receives, int64_t deadline)
{
	struct work_wait wait = { .channel = channel,
				  .holds = are_over,
				  .sends = sends,
				  .receives = receives };

	return wait_for(&wait, deadline);
}

int pier_wait_for_message(struct pier_channel *channel, int64_t deadline)
{
	struct work_wait wait = { .channel = channel, .holds = has_message };

	return wait_for(&wait, deadline);
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

const char *pier_explain_silence(const struct pier_channel *channel)
{
	const struct pier_queue *sends = &channel->sends;

	if (pier_queue_outstanding(sends) == 0)
		return "";
	/* It holds up all requests that were posted after it. */
	switch (pier_entry_opcode(pier_queue_entry(sends, sends->tail))) {
	case PIER_OP_SEND:
		return " (the peer may have posted no receive)";
	case PIER_OP_WRITE:
		return " (the peer may have posted no receive, if the write has "
		       "immediate data)";
	default:
		return "";
	}
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
				 "outstanding%s",
				 count, timeout_ms,
				 pier_queue_outstanding(&channel->sends),
				 pier_explain_silence(channel));
	return error;
}

/*
 * The wait timed out or failed, and the caller wants its memory back: stop the channel.
 * A failed wait has left its sentence.
 */
static int cancel_wait(struct pier_channel *channel, struct pier_work work, int error,
		       int timeout_ms, struct pier_result *ret_result)
{
	const struct pier_queue *queue = pier_queue_of(channel, work.id);
	const struct pier_entry *entry = pier_queue_find(queue, work.id);
	char cause[512];

	if (error == -ETIMEDOUT)
		snprintf(cause, sizeof(cause),
			 "%s did not complete within %d ms%s; everything outstanding was "
			 "stopped",
			 pier_opcode_name(pier_entry_opcode(entry)), timeout_ms,
			 queue == &channel->sends ? pier_explain_silence(channel) : "");
	else
		snprintf(cause, sizeof(cause), "%s", pier_error_message());
	pier_break_channel(channel, error, cause);
	pier_stop_channel(channel);
	pier_work_poll(channel, work, ret_result);
	return pier_fail(-error, "%s", cause);
}

int pier_wait_for_work(struct pier_channel *channel, struct pier_work work,
		       int64_t deadline, int timeout_ms, struct pier_result *ret_result)
{
	struct work_wait wait = { .channel = channel,
				  .holds = entry_is_done,
				  .entry = pier_queue_find(
					  pier_queue_of(channel, work.id), work.id) };
	struct pier_result result;
	int error = wait_for(&wait, deadline);

	if (error)
		return cancel_wait(channel, work, error, timeout_ms, ret_result);
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
		return pier_wait_for_work(channel, work, pier_deadline(timeout_ms),
					  timeout_ms, ret_result);
	if (done == -ESTALE)
		return done;
	if (done < 0)
		return cancel_wait(channel, work, done, timeout_ms, ret_result);
	if (ret_result)
		*ret_result = result;
	return result.error;
}
