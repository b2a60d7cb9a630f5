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

int pier_channel_send_imm(struct pier_channel *channel, const struct pier_gather *sg_list,
			  int num_sge, uint32_t immediate, int timeout_ms)
{
	struct pier_work work = { 0 };
	int error = pier_channel_timeout(channel, timeout_ms, &timeout_ms);

	if (!error)
		error = pier_post_send_imm(channel, sg_list, num_sge, immediate, &work);
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

int pier_channel_write_imm(struct pier_channel *channel,
			   const struct pier_gather *sg_list, int num_sge,
			   const struct pier_remote *remote, uint32_t immediate,
			   int timeout_ms)
{
	struct pier_work work = { 0 };
	int error = pier_channel_timeout(channel, timeout_ms, &timeout_ms);

	if (!error)
		error = pier_post_write_imm(channel, sg_list, num_sge, remote, immediate,
					    &work);
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

int pier_channel_compare_swap(struct pier_channel *channel,
			      const struct pier_scatter *element,
			      const struct pier_remote *remote, uint64_t compare,
			      uint64_t swap, int timeout_ms)
{
	struct pier_work work = { 0 };
	int error = pier_channel_timeout(channel, timeout_ms, &timeout_ms);

	if (!error)
		error = pier_post_compare_swap(channel, element, remote, compare, swap,
					       &work);
	return wait_posted(channel, error, work, timeout_ms, NULL);
}

int pier_channel_fetch_add(struct pier_channel *channel,
			   const struct pier_scatter *element,
			   const struct pier_remote *remote, uint64_t add, int timeout_ms)
{
	struct pier_work work = { 0 };
	int error = pier_channel_timeout(channel, timeout_ms, &timeout_ms);

	if (!error)
		error = pier_post_fetch_add(channel, element, remote, add, &work);
	return wait_posted(channel, error, work, timeout_ms, NULL);
}
