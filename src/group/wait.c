/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "channel/extra/keepalive.h"
#include "group.h"
#include "core/deadline.h"
#include "core/error.h"

enum {
	BRIEF_LOOKS = 100, /* some microseconds, before asking for events */
};

void pier_group_watch(struct pier_group *group, struct pier_channel *channel)
{
	assert(group->watch_count < group->size);
	group->watch[group->watch_count++] = channel;
}

static int look_once(struct pier_group *group, pier_group_look *look, void *subject)
{
	group->look++;
	group->watch_count = 0;
	return look(group, subject);
}

static int arm_watched(struct pier_group *group)
{
	int count = 0;

	for (uint32_t i = 0; i < group->watch_count && count >= 0; i++)
		count = pier_channel_arm(group->watch[i]);
	return count < 0 ? count : 0;
}

/* On all of them at once, so that none uses up the time of the others. */
static int sleep_on_watched(struct pier_group *group, int timeout)
{
	for (uint32_t i = 0; i < group->watch_count; i++) {
		timeout = pier_sleep_ms(group->watch[i], timeout);
		group->fds[i] = (struct pollfd){ .fd = pier_channel_fd(group->watch[i]),
						 .events = POLLIN };
	}
	if (poll(group->fds, group->watch_count, timeout) < 0 && errno != EINTR)
		return pier_fail(errno, "poll the completion channels of a group: %s",
				 strerror(errno));
	return 0;
}

/*
 * First armed, then looked at, then slept on: what completes in between makes a channel's
 * fd readable, also if it was another request of the same look that collected it. No
 * look watches what the one before it did not.
 */
int pier_group_wait_until(struct pier_group *group, pier_group_look *look, void *subject,
			  int64_t deadline)
{
	int done = 0, error = 0;

	for (int i = 0; i < BRIEF_LOOKS && !done; i++)
		done = look_once(group, look, subject);
	while (!done && !error) {
		int timeout = pier_poll_timeout(deadline);

		error = arm_watched(group);
		if (!error)
			done = look_once(group, look, subject);
		if (!done && !error)
			error = timeout ? sleep_on_watched(group, timeout) : -ETIMEDOUT;
	}
	return done < 0 ? done : error;
}
