/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <errno.h>

#include "channel/scope.h"
#include "collect.h"
#include "core/error.h"
#include "posting.h"
#include "status.h"

/* The rare half of posting: requests that are refused, wait for room or have no data. */

int pier_refuse_state(const struct pier_channel *channel)
{
	if (pier_inherited(&channel->object))
		return pier_fail_inherited(&channel->object);
	if (channel->broken)
		return pier_fail_broken(channel);
	return pier_fail(ENOTCONN, "the channel is not connected");
}

int pier_refuse_receive(const struct pier_channel *channel)
{
	if (channel->attr.srq && !pier_inherited(&channel->object))
		return pier_fail(EINVAL, "the channel takes its receives from a shared "
					 "queue: pier_srq_post_recv()");
	return pier_refuse_state(channel);
}

int pier_refuse_elements(const struct pier_channel *channel, uint32_t num_sge,
			 uint32_t max_sge, uint64_t length)
{
	if (num_sge > max_sge)
		return pier_fail(EINVAL, "%u elements; this channel takes 0 to %u",
				 num_sge, max_sge);
	return pier_fail(EMSGSIZE, "message of %llu bytes; the port's max_msg_size is %u",
			 (unsigned long long)length, channel->max_msg_size);
}

int pier_check_elements(enum pier_opcode opcode, const void *sg_list, uint32_t num_sge)
{
	if (sg_list || num_sge == 0)
		return 0;
	return pier_fail(EINVAL, "%s: num_sge is %u, and sg_list is NULL",
			 pier_opcode_name(opcode), num_sge);
}

static int refuse_atomic(const struct pier_channel *channel,
			 const struct pier_request *request, uint64_t length)
{
	const char *name = pier_opcode_name(request->opcode);

	assert(request->remote);
	if (!channel->has_atomics)
		return pier_fail(EOPNOTSUPP, "%s: the device has no atomics (atomic_cap)",
				 name);
	if (length != 8)
		return pier_fail(EINVAL, "%s of %llu bytes: atomics take 8", name,
				 (unsigned long long)length);
	return pier_fail(EINVAL, "%s at %#llx: the address is not a multiple of 8", name,
			 (unsigned long long)request->remote->addr);
}

static int refuse_request(const struct pier_channel *channel,
			  const struct pier_request *request, uint64_t length)
{
	const struct pier_remote *remote = request->remote;
	const char *name = pier_opcode_name(request->opcode);

	if (length > channel->max_msg_size)
		return pier_refuse_elements(channel, request->num_sge, UINT32_MAX,
					    length);
	if (!remote && request->opcode != PIER_OP_SEND &&
	    (length || pier_is_atomic(request->opcode)))
		return pier_fail(EINVAL, "%s of %llu bytes: remote is NULL", name,
				 (unsigned long long)length);
	if (remote && request->opcode != PIER_OP_SEND && remote->length < length)
		return pier_fail(ERANGE, "%s of %llu bytes; the remote region has %llu",
				 name, (unsigned long long)length,
				 (unsigned long long)remote->length);
	if (pier_is_read(request->opcode) && channel->read_depth == 0)
		return pier_fail(EOPNOTSUPP,
				 "no reads and atomics on this channel: max_rd_atomic "
				 "of one of its ends is 0");
	return refuse_atomic(channel, request, length);
}

static bool is_of_send_queue(enum pier_opcode opcode)
{
	return opcode == PIER_OP_SEND || opcode == PIER_OP_WRITE || pier_is_read(opcode);
}

static int check_flags(const struct pier_request *request)
{
	const int known = PIER_POST_IMMEDIATE | PIER_POST_INVALIDATE | PIER_POST_FENCE |
			  PIER_POST_SOLICITED;
	int flags = request->flags;
	bool send = request->opcode == PIER_OP_SEND;
	bool immediate = flags & PIER_POST_IMMEDIATE;
	const char *wrong = NULL;

	if (flags & ~known)
		return pier_fail(EINVAL, "request: flags %#x: %#x are unknown",
				 (unsigned int)flags, (unsigned int)(flags & ~known));
	if (immediate && pier_is_read(request->opcode))
		wrong = "IMMEDIATE";
	else if ((flags & PIER_POST_INVALIDATE) && (!send || immediate))
		wrong = immediate ? "INVALIDATE beside IMMEDIATE" : "INVALIDATE";
	else if ((flags & PIER_POST_SOLICITED) && !send && !immediate)
		wrong = "SOLICITED";
	if (!wrong)
		return 0;
	return pier_fail(EINVAL, "request: a %s cannot be %s",
			 pier_opcode_name(request->opcode), wrong);
}

int pier_check_form(const struct pier_channel *channel,
		    const struct pier_request *request)
{
	const unsigned int windows = IBV_DEVICE_MEM_WINDOW_TYPE_2A |
				     IBV_DEVICE_MEM_WINDOW_TYPE_2B;
	int error;

	if (!is_of_send_queue(request->opcode))
		return pier_fail(EINVAL,
				 "request: opcode %d does not belong to the send queue",
				 (int)request->opcode);
	error = request->flags ? check_flags(request) : 0;
	if (!error && (request->flags & PIER_POST_INVALIDATE) &&
	    !(channel->pd->device->limits.device_cap_flags & windows))
		return pier_fail(EOPNOTSUPP, "request: the device cannot INVALIDATE: it "
					     "has no memory windows of type 2");
	return error;
}

/* The requests take consecutive entries. */
static bool has_places(struct pier_queue *queue, uint32_t count)
{
	if (pier_queue_room(queue) < count)
		return false;
	for (uint32_t i = 0; i < count; i++) {
		if (!pier_queue_make_free(queue, queue->head + i))
			return false;
	}
	return true;
}

/* The queue may be full of completed requests that nobody has polled. */
int pier_make_room(struct pier_channel *channel, struct pier_queue *queue, uint32_t count)
{
	const char *name = queue == &channel->receives ? "receive" : "send";
	int error = 0;

	if (pier_queue_room(queue) < count)
		error = pier_collect(channel);
	if (error >= 0 && queue == &channel->sends && pier_queue_room(queue) < count)
		error = pier_wait_in_window(channel, count);
	if (error < 0)
		return error;
	if (channel->broken)
		return pier_fail_broken(channel);
	if (has_places(queue, count))
		return 0;
	if (pier_queue_room(queue) >= count)
		return pier_fail(EAGAIN,
				 "%u completed requests of the %s queue were never "
				 "polled: call pier_work_poll() or pier_work_drop()",
				 queue->aside_count, name);
	if (count > 1)
		return pier_fail(EAGAIN,
				 "%u requests are needed, and the %s queue of %u has %u "
				 "free: wait for some",
				 count, name, queue->depth, pier_queue_room(queue));
	return pier_fail(EAGAIN, "the %s queue is full with %u requests: wait for one",
			 name, queue->depth);
}

/* The last sentence may be unrelated if the provider leaves none: see provider.h. */
int pier_refuse_post(const struct pier_channel *channel, int error,
		     enum pier_opcode opcode)
{
	if (!channel->provider->explains_posts)
		pier_clear_error();
	return pier_fail_because(error, "post a %s", pier_opcode_name(opcode));
}

bool pier_has_far_element(const struct pier_channel *channel,
			  const struct ibv_sge *sg_list, uint32_t num_sge)
{
	for (uint32_t i = 0; i < num_sge; i++)
		if (pier_is_far_key(channel->pd, sg_list[i].lkey))
			return true;
	return false;
}

int pier_check_request(const struct pier_channel *channel,
		       const struct pier_request *request, uint64_t *ret_length)
{
	uint32_t max_sge = pier_max_sge(channel, request->opcode);
	int error;

	if ((uint32_t)request->num_sge > max_sge)
		return pier_refuse_elements(channel, request->num_sge, max_sge, 0);
	error = pier_check_elements(request->opcode, request->gather, request->num_sge);
	if (error)
		return error;
	*ret_length = pier_sum_lengths(pier_sg_list(request), request->num_sge);
	return pier_request_fits(channel, request, *ret_length)
		       ? 0
		       : refuse_request(channel, request, *ret_length);
}

int pier_post_whole(struct pier_channel *channel, const struct pier_request *request,
		    struct pier_work *ret_work)
{
	uint64_t length;
	int error;

	if (channel->sends.limit == 0)
		return pier_refuse_state(channel);
	error = pier_check_request(channel, request, &length);
	if (!error && !pier_has_room(&channel->sends))
		error = pier_make_room(channel, &channel->sends, 1);
	if (error)
		return error;
	return pier_post_now(channel, request, length,
			     pier_inline_flag(channel, request, length), ret_work);
}
