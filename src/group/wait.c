/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>

#include "channel/wait.h"
#include "wait.h"

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

/* One wait of a group. */
struct group_wait {
	struct pier_group *group;
	pier_group_look *look;
	void *subject;
};

static int check_look(void *subject)
{
	const struct group_wait *wait = subject;

	return look_once(wait->group, wait->look, wait->subject);
}

/* All channels at once, so that none uses up the time of the others. */
static int pass_watched(void *subject, struct pier_wait_pass *pass)
{
	const struct group_wait *wait = subject;
	int error = 0;

	for (uint32_t i = 0; i < wait->group->watch_count && !error; i++)
		error = pier_wait_pass_channel(pass, wait->group->watch[i]);
	return error;
}

int pier_group_wait_until(struct pier_group *group, pier_group_look *look, void *subject,
			  int64_t deadline)
{
	struct group_wait wait = { .group = group, .look = look, .subject = subject };
	const struct pier_wait_condition condition = {
		.check = check_look,
		.pass = pass_watched,
		.subject = &wait,
		.fds = group->fds,
	};

	return pier_wait_until(&condition, deadline);
}
