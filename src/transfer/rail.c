/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include <pier/element.h>

#include "rail.h"
#include "region/mr.h"
#include "region/sync.h"
#include "core/checked.h"
#include "core/error.h"

int pier_rail_check_channel(const struct pier_channel *channel, bool reads)
{
	int error = pier_check_process(&channel->object);

	if (error)
		return error;
	if (channel->state != PIER_CHANNEL_CONNECTED)
		return pier_fail(ENOTCONN, "the channel is not connected");
	if (channel->broken)
		return pier_fail_broken(channel);
	if (channel->max_msg_size == 0)
		return pier_fail(EMSGSIZE, "the port's max_msg_size is 0");
	if (reads && channel->read_depth == 0)
		return pier_fail(EOPNOTSUPP,
				 "no reads on this channel: max_rd_atomic of one of its "
				 "ends is 0");
	if ((reads ? channel->max_read_sge : channel->attr.max_send_sge) == 0 ||
	    channel->attr.max_send_wr == 0)
		return pier_fail(EINVAL,
				 "the channel takes no elements: max_send_wr %u, "
				 "max_send_sge %u",
				 channel->attr.max_send_wr, channel->attr.max_send_sge);
	return 0;
}

int pier_rail_check_memory(const struct pier_channel *channel, const struct pier_mr *mr,
			   uint64_t offset, uint64_t length)
{
	if (mr->pd != channel->pd)
		return pier_fail(EINVAL, "the region is in another protection domain "
					 "than the channel");
	if (!pier_range_fits(offset, length, pier_mr_length(mr)))
		return pier_fail(ERANGE,
				 "offset %" PRIu64 " and length %" PRIu64
				 " leave the region of %zu bytes",
				 offset, length, pier_mr_length(mr));
	return 0;
}

struct ibv_sge pier_rail_element(const struct pier_mr *mr, uint64_t addr, uint32_t length)
{
	struct pier_gather element;

	if (mr->parts) {
		uint64_t offset = addr - mr->iova;
		const struct pier_mr_part *part = pier_mr_find_part(mr, offset);
		uint64_t left = part->length - (offset - part->start);

		if (length > left)
			length = (uint32_t)left;
	}
	element = pier_mr_gather_unchecked(mr, addr, length);
	return (struct ibv_sge){ element.addr, element.length, element.lkey };
}

void pier_rail_classify_memory(struct pier_rail_base *rail)
{
	rail->bounced = pier_has_bounce(rail->mr);
	rail->direct = pier_has_direct(rail->mr);
}

int pier_rail_deliver(struct pier_rail_base *rail, struct pier_range range)
{
	int error = 0;

	if (rail->bounced)
		error = pier_copy_for_device(rail->mr, rail->offset + range.offset,
					     range.length);
	rail->unflushed |= rail->direct;
	return error;
}

int pier_rail_flush(struct pier_rail_base *rail, uint64_t length)
{
	bool unflushed = rail->unflushed, doubtful = rail->doubtful;

	rail->unflushed = rail->doubtful = false;
	return unflushed ? pier_flush_for_device(rail->mr, rail->offset, length, doubtful)
			 : 0;
}

/* Rails of a receiver. */

static int check_receiving(struct pier_channel *channel, bool kept)
{
	int error = pier_check_process(&channel->object);

	if (error)
		return error;
	if (channel->state == PIER_CHANNEL_FAILED)
		return pier_fail(ENOTCONN, "the channel failed to connect");
	if (channel->broken)
		return pier_fail_broken(channel);
	if (channel->attr.srq || channel->pool || channel->attr.max_recv_wr == 0)
		return pier_fail(EINVAL, "the channel has %s",
				 channel->attr.srq ? "a shared receive queue"
				 : channel->pool   ? "a receive pool"
						   : "no receives: max_recv_wr 0");
	if (!kept && pier_queue_outstanding(&channel->receives) > 0)
		return pier_fail(EBUSY,
				 "the channel has %u receives posted, which would take "
				 "announced chunks",
				 pier_queue_outstanding(&channel->receives));
	return 0;
}

static int check_region(const struct pier_receiver_rail *given, uint64_t length)
{
	int error = pier_check_process(&given->mr->object);

	return error ? error
		     : pier_rail_check_memory(given->channel, given->mr, given->offset,
					      length);
}

int pier_recv_rail_init(struct pier_rail_base *rail, const char *what, uint32_t index,
			const struct pier_receiver_rail *given, uint64_t length,
			const struct pier_rail_base *predecessor)
{
	int error;

	*rail = (struct pier_rail_base){ .mr = given->mr, .offset = given->offset };
	pier_clear_error();
	error = check_receiving(given->channel, predecessor != NULL);
	if (!error)
		error = check_region(given, length);
	if (!error) {
		pier_rail_classify_memory(rail);
		error = pier_flow_open(&rail->flow, given->channel,
				       given->channel->attr.max_recv_wr, 0);
	}
	return error ? pier_fail_because(-error, "rail %u of a %s", index, what) : 0;
}

void pier_recv_rail_free(struct pier_rail_base *rail)
{
	pier_flow_free(&rail->flow);
	*rail = (struct pier_rail_base){ 0 };
}

bool pier_recv_rail_is_alive(const struct pier_rail_base *rail)
{
	const struct pier_flow *flow = &rail->flow;

	return !flow->error && flow->resets == flow->channel->resets;
}

void pier_recv_rail_inherit(struct pier_rail_base *rail,
			    struct pier_rail_base *predecessor)
{
	struct pier_flow flow = rail->flow;

	rail->flow = predecessor->flow;
	predecessor->flow = flow;
}

void pier_recv_rail_release(struct pier_rail_base *rail)
{
	struct pier_flow *flow = &rail->flow;

	if (flow->count > 0)
		pier_flow_stop(flow, -ECANCELED,
			       "its receiver was destroyed, or went on without it, with "
			       "receives posted");
	pier_flow_finish_stop(flow);
	for (; flow->count > 0; flow->count--)
		pier_work_drop(flow->channel, pier_flow_at(flow, flow->count - 1)->work);
}

/*
 * The rest of the flow is from before a reset, and still to be taken. A channel without a
 * receive is stopped, too: plain writes of the peer need none.
 */
int pier_recv_rail_post(struct pier_rail_base *rail)
{
	struct pier_flow *flow = &rail->flow;
	struct pier_flight receive = { .length = 0 };
	int error = flow->error;

	if (error)
		return error;
	if (flow->resets != flow->channel->resets)
		error = pier_fail(ECANCELED, "the channel was reset");
	while (!error && !pier_flow_is_full(flow)) {
		error = pier_channel_post_recv(flow->channel, NULL, 0, &receive.work);
		if (!error)
			pier_flow_add(flow, &receive, 0);
	}
	if (error)
		pier_flow_stop(flow, error, pier_error_message());
	return error;
}

bool pier_recv_rail_take(struct pier_rail_base *rail, struct pier_result *ret_result)
{
	struct pier_flight receive;

	do {
		if (!pier_flow_take(&rail->flow, 0, &receive, ret_result))
			return false;
	} while (receive.error);
	return true;
}

void pier_recv_rail_note_unseen(const struct pier_rail_base *rail)
{
	if (!rail->flow.error && rail->flow.channel->receives.kept > 0)
		rail->flow.channel->unseen = true;
}
