/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include <pier/element.h>

#include "rail.h"
#include "region/bounce.h"
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
	if (pier_mr_pd(mr) != channel->pd)
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

bool pier_rail_record_failure(struct pier_rail_base *rail, int error,
			      const char *sentence)
{
	int broken = rail->channel->broken;

	if (rail->error)
		return false;
	rail->error = (error == -ECANCELED || error == -EPIPE) && broken ? broken : error;
	snprintf(rail->sentence, sizeof(rail->sentence), "%s", sentence);
	return true;
}
