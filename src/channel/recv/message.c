/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "channel/collect.h"
#include "channel/work_wait.h"
#include "core/deadline.h"
#include "core/error.h"
#include "srq.h"
#include "srq_post.h"

/* The messages of a channel that has a shared receive queue. */

static int check_messages(const struct pier_channel *channel)
{
	int error = pier_check_process(&channel->object);

	if (error)
		return error;
	if (!channel->attr.srq)
		return pier_fail(EINVAL,
				 "the channel has its own receives; only channels with a "
				 "shared receive queue have messages");
	if (channel->attr.srq->pool)
		return pier_fail(EBUSY, "the messages of the channel belong to a receive "
					"pool");
	return 0;
}

/* Take the oldest message. */
static int take_message(struct pier_channel *channel, struct pier_message *ret_message)
{
	pier_srq_take(channel, ret_message);
	if (ret_message->result.error)
		pier_explain_failure(channel, &ret_message->result);
	return 1;
}

int pier_message_poll(struct pier_channel *channel, struct pier_message *ret_message)
{
	int error = check_messages(channel);

	if (!error && !channel->first_message)
		error = pier_collect(channel);
	if (error < 0)
		return error;
	if (channel->first_message)
		return take_message(channel, ret_message);
	return channel->broken ? pier_fail_broken(channel) : 0;
}

int pier_message_wait(struct pier_channel *channel, int timeout_ms,
		      struct pier_message *ret_message)
{
	int error = check_messages(channel), found;

	if (!error)
		error = pier_channel_timeout(channel, timeout_ms, &timeout_ms);
	if (!error)
		error = pier_wait_for_message(channel, pier_deadline(timeout_ms));
	if (error == -ETIMEDOUT)
		pier_find_broken_qp(channel);
	else if (error)
		return error;
	found = pier_message_poll(channel, ret_message);
	if (found > 0)
		return ret_message->result.error;
	if (found < 0)
		return found;
	return pier_fail(ETIMEDOUT, "no message arrived within %d ms", timeout_ms);
}
