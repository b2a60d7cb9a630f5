/* SPDX-License-Identifier: BSD-3-Clause */
#include "channel.h"

/* Post one request and wait for it. */

static int wait_posted(struct pier_channel *channel, int error, struct pier_work work,
		       int timeout_ms, struct pier_result *ret_result)
{
	return error ? error : pier_work_wait(channel, work, timeout_ms, ret_result);
}

int pier_channel_send(struct pier_channel *channel, const struct pier_gather *sg_list,
		      int num_sge, int timeout_ms)
{
	struct pier_work work = { 0 };
	int error = pier_channel_timeout(channel, timeout_ms, &timeout_ms);

	if (!error)
		error = pier_post_send(channel, sg_list, num_sge, &work);
	return wait_posted(channel, error, work, timeout_ms, NULL);
}

int pier_channel_recv(struct pier_channel *channel, const struct pier_scatter *sg_list,
		      int num_sge, int timeout_ms, struct pier_result *ret_result)
{
	struct pier_work work = { 0 };
	int error = pier_channel_timeout(channel, timeout_ms, &timeout_ms);

	if (!error)
		error = pier_post_recv(channel, sg_list, num_sge, &work);
	return wait_posted(channel, error, work, timeout_ms, ret_result);
}

int pier_channel_write(struct pier_channel *channel, const struct pier_gather *sg_list,
		       int num_sge, const struct pier_remote *remote, int timeout_ms)
{
	struct pier_work work = { 0 };
	int error = pier_channel_timeout(channel, timeout_ms, &timeout_ms);

	if (!error)
		error = pier_post_write(channel, sg_list, num_sge, remote, &work);
	return wait_posted(channel, error, work, timeout_ms, NULL);
}

int pier_channel_read(struct pier_channel *channel, const struct pier_scatter *sg_list,
		      int num_sge, const struct pier_remote *remote, int timeout_ms)
{
	struct pier_work work = { 0 };
	int error = pier_channel_timeout(channel, timeout_ms, &timeout_ms);

	if (!error)
		error = pier_post_read(channel, sg_list, num_sge, remote, &work);
	return wait_posted(channel, error, work, timeout_ms, NULL);
}
