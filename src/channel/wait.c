/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>

#include <pier/recovery.h>

#include "channel/extra/keepalive.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/sleep.h"
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
	int count = 0;

	if (channel->attr.cq && channel->attr.cq == pass->armed)
		pier_keep_alive(channel);
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
