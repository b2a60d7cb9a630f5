/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <pier/recovery.h>
#include <pier/waiting.h>

#include "channel/keepalive.h"
#include "channel/setup/attr.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/sleep.h"
#include "status.h"
#include "stop.h"
#include "wait.h"

/* How long to poll before sleeping. */
struct spin {
	int64_t budget; /* in nanoseconds; 0: no polling */
	int64_t deadline;
	int64_t end; /* 0: not known before the clock is read */
	uint32_t looks;
	bool over;
};

static int64_t spin_time(const struct pier_channel *channel)
{
	if (channel->attr.waiting == PIER_WAIT_EVENT)
		return 0;
	if (channel->attr.waiting == PIER_WAIT_POLL)
		return INT64_MAX;
	return (int64_t)channel->attr.spin_us * 1000;
}

/* The events of a device that has failed may be all that ever comes. */
static int check_device(struct pier_wait_pass *pass, struct pier_device *device)
{
	if (device == pass->device)
		return 0;
	pass->device = device;
	if (device->takes_events && pass->timeout_ms > PIER_EVENTS_MS)
		pass->timeout_ms = PIER_EVENTS_MS;
	return pier_check_device_events(device);
}

/* A keepalive that is due ends the sleep. */
static void add_fd(struct pier_wait_pass *pass, struct pier_channel *channel)
{
	int next_ms = pier_channel_next_ms(channel);
	int fd = pier_channel_fd(channel);

	if (next_ms >= 0 && next_ms < pass->timeout_ms)
		pass->timeout_ms = next_ms;
	if (pass->fd_count == 0 || pass->fds[pass->fd_count - 1].fd != fd)
		pass->fds[pass->fd_count++] = (struct pollfd){ .fd = fd,
							       .events = POLLIN };
}

/*
 * A shared CQ is armed once for its channels that follow each other. The check after
 * this pass sees what arming has collected for any of them.
 */
static int arm_channel(struct pier_wait_pass *pass, struct pier_channel *channel)
{
	int count;

	if (channel->attr.cq && channel->attr.cq == pass->armed)
		count = pier_keep_alive(channel);
	else
		count = pier_channel_arm(channel);
	pass->armed = channel->attr.cq;
	if (count > 0)
		pass->again = true;
	return count < 0 ? count : 0;
}

int pier_wait_pass_channel(struct pier_wait_pass *pass, struct pier_channel *channel)
{
	if (pass->step == PIER_WAIT_STEP_ARM)
		return arm_channel(pass, channel);
	if (pass->step == PIER_WAIT_STEP_SLEEP) {
		add_fd(pass, channel);
		return check_device(pass, channel->pd->device);
	}
	if (spin_time(channel) > pass->spin_ns)
		pass->spin_ns = spin_time(channel);
	return 0;
}

void pier_wait_pass_until(struct pier_wait_pass *pass, int64_t time)
{
	int timeout_ms;

	if (pass->step != PIER_WAIT_STEP_SLEEP)
		return;
	timeout_ms = pier_poll_timeout(time);
	if (timeout_ms < pass->timeout_ms)
		pass->timeout_ms = timeout_ms;
}

/* As long as the channel that polls longest. */
static int begin_spin(const struct pier_wait_condition *condition, int64_t deadline,
		      struct spin *ret_spin)
{
	struct pier_wait_pass pass = { .step = PIER_WAIT_STEP_SPIN };
	int error = condition->pass(condition->subject, &pass);

	*ret_spin = (struct spin){ .budget = pass.spin_ns, .deadline = deadline };
	return error;
}

/* Whether to poll once more before sleeping. Progress begins the time anew. */
static bool spin_again(struct spin *spin, int state)
{
	int64_t now;

	if (state == PIER_CONDITION_PROGRESS) {
		spin->end = 0;
		spin->over = false;
	}
	if (spin->budget == 0 || spin->over)
		return false;
	if (++spin->looks % PIER_LOOKS_PER_CLOCK)
		return true;
	now = pier_now();
	if (spin->end == 0)
		spin->end = spin->budget < spin->deadline - now ? now + spin->budget
								: spin->deadline;
	spin->over = now >= spin->end;
	return !spin->over;
}

static bool is_pending(int state)
{
	return state == PIER_CONDITION_PENDING || state == PIER_CONDITION_PROGRESS;
}

/* state: of the last check. Returns that of the last one now. */
static int poll_while_spinning(const struct pier_wait_condition *condition,
			       struct spin *spin, int state)
{
	while (is_pending(state) && spin_again(spin, state)) {
		int count = condition->collect ? condition->collect(condition->subject)
					       : 0;

		state = count < 0 ? count : condition->check(condition->subject);
	}
	return state;
}

/* Sleep until a channel has an event, at most that long. */
static int sleep_on_channels(const struct pier_wait_condition *condition, int timeout_ms)
{
	struct pier_wait_pass pass = { .step = PIER_WAIT_STEP_SLEEP,
				       .fds = condition->fds,
				       .timeout_ms = timeout_ms };
	int error = condition->pass(condition->subject, &pass);

	if (error)
		return error;
	error = pier_sleep(pass.fds, pass.fd_count, pass.timeout_ms);
	if (error < 0 && error != -EINTR)
		return pier_fail(-error, "poll the completion channels: %s",
				 strerror(-error));
	return error < 0 ? error : 0;
}

/*
 * Arm, check, sleep: a completion that comes before arming is seen by the check, and one
 * that comes later makes the channel's fd readable, also if the check collects it.
 */
static int check_and_sleep(const struct pier_wait_condition *condition, int64_t deadline)
{
	struct pier_wait_pass pass = { .step = PIER_WAIT_STEP_ARM };
	int timeout_ms = pier_poll_timeout(deadline);
	int state, error = condition->pass(condition->subject, &pass);

	if (error)
		return error;
	state = condition->check(condition->subject);
	if (!is_pending(state))
		return state;
	if (timeout_ms == 0)
		return -ETIMEDOUT;
	if (pass.again || state == PIER_CONDITION_PROGRESS)
		return state;
	error = sleep_on_channels(condition, timeout_ms);
	return error ? error : state;
}

int pier_wait_until(const struct pier_wait_condition *condition, int64_t deadline)
{
	int state = condition->check(condition->subject);
	struct spin spin = { 0 };
	int error = is_pending(state) ? begin_spin(condition, deadline, &spin) : 0;

	if (error)
		return error;
	while (is_pending(state)) {
		state = poll_while_spinning(condition, &spin, state);
		if (is_pending(state))
			state = check_and_sleep(condition, deadline);
	}
	return state < 0 ? state : 0;
}

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
	PIER_REFUSE_NULL(channel);
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
	PIER_REFUSE_NULL_AS(0, channel);
	return pier_queue_room(&channel->sends);
}

/*
 * The wait timed out or failed, and the caller wants its memory back: stop the channel.
 * A failed wait has left its sentence.
 */
static int cancel_wait(struct pier_channel *channel, struct pier_work work, int error,
		       int timeout_ms, struct pier_result *ret_result)
{
	struct pier_queue *queue = pier_queue_of(channel, work.id);
	struct pier_entry *entry = pier_queue_find(queue, work.id);

	if (error == -ETIMEDOUT)
		pier_stop_because(
			channel, error,
			"%s did not complete within %d ms%s; everything outstanding was "
			"stopped",
			pier_opcode_name(pier_entry_opcode(entry)), timeout_ms,
			queue == &channel->sends ? pier_explain_silence(channel) : "");
	else
		pier_stop_because(channel, error, "%s", pier_error_message());
	/* Not pier_work_poll(), which would leave the sentence of the request. */
	if (ret_result)
		*ret_result = entry->result;
	pier_queue_forget(queue, entry);
	return error;
}

int pier_wait_for_work(struct pier_channel *channel, struct pier_work work,
		       int64_t deadline)
{
	struct work_wait wait = { .channel = channel,
				  .holds = entry_is_done,
				  .entry = pier_queue_find(
					  pier_queue_of(channel, work.id), work.id) };

	return wait.entry ? wait_for(&wait, deadline) : 0;
}

/* Returns 1 and the result, -ETIMEDOUT without a sentence, or another error. */
static int wait_for_entry(struct pier_channel *channel, struct pier_work work,
			  int64_t deadline, struct pier_result *ret_result)
{
	int error = pier_wait_for_work(channel, work, deadline);

	return error ? error : pier_work_poll(channel, work, ret_result);
}

int pier_wait_or_stop(struct pier_channel *channel, struct pier_work work,
		      int64_t deadline, int timeout_ms, struct pier_result *ret_result)
{
	struct pier_result result;
	int done = pier_work_poll(channel, work, &result);

	if (done == 0)
		done = wait_for_entry(channel, work, deadline, &result);
	if (done == -ESTALE)
		return done;
	if (done < 0)
		return cancel_wait(channel, work, done, timeout_ms, ret_result);
	if (ret_result)
		*ret_result = result;
	return result.error;
}

int pier_work_wait(struct pier_channel *channel, struct pier_work work, int timeout_ms,
		   struct pier_result *ret_result)
{
	PIER_REFUSE_NULL(channel);
	const struct pier_queue *queue = pier_queue_of(channel, work.id);
	struct pier_result unused;
	int error, done;

	if (!ret_result)
		ret_result = &unused;
	error = pier_check_process(&channel->object);
	if (!error)
		error = pier_channel_timeout(channel, timeout_ms, &timeout_ms);
	if (error)
		return error;
	done = pier_work_poll(channel, work, ret_result);
	if (done == 0 && timeout_ms > 0)
		done = wait_for_entry(channel, work, pier_deadline(timeout_ms),
				      ret_result);
	if (done == -ETIMEDOUT)
		return pier_fail(
			ETIMEDOUT, "%s did not complete within %d ms%s",
			pier_opcode_name(
				pier_entry_opcode(pier_queue_find(queue, work.id))),
			timeout_ms,
			queue == &channel->sends ? pier_explain_silence(channel) : "");
	return done;
}
