/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>

#include "announce.h"
#include "channel/channel.h"
#include "region/mr.h"
#include "core/error.h"

int pier_read_announcement(const struct pier_result *result, uint64_t length,
			   struct pier_range *ret_chunk)
{
	uint64_t offset = pier_announced_offset(result->immediate);
	uint64_t longest = (uint64_t)result->byte_length * PIER_ANNOUNCE_BLOCK;
	uint64_t left = offset < length ? length - offset : 0;

	if (!pier_is_announcement(result))
		return pier_fail(EBADMSG, "the peer sent a message, and no chunk");
	if (longest == 0 || longest - (PIER_ANNOUNCE_BLOCK - 1) > left)
		return pier_fail(EBADMSG,
				 "the peer announced a chunk of %u blocks at %" PRIu64
				 ", which no transfer of %" PRIu64 " bytes has",
				 result->byte_length, offset, length);
	*ret_chunk = (struct pier_range){ offset, longest < left ? longest : left };
	return 0;
}

int pier_check_announcing(const struct pier_transfer_attr *attr)
{
	const char *wrong = NULL;

	if (!(attr->flags & PIER_TRANSFER_ANNOUNCE))
		return 0;
	if (attr->direction == PIER_TRANSFER_READ)
		wrong = "reading tells the peer nothing";
	else if (attr->flags & PIER_TRANSFER_NOTIFY)
		wrong = "with PIER_TRANSFER_NOTIFY, whose immediate data would be taken "
			"for a chunk; a receiver knows when all has arrived";
	if (wrong)
		return pier_fail(EINVAL, "transfer: PIER_TRANSFER_ANNOUNCE: %s", wrong);
	if (attr->chunk % PIER_ANNOUNCE_BLOCK)
		return pier_fail(EINVAL,
				 "transfer: PIER_TRANSFER_ANNOUNCE: chunk %u is no "
				 "multiple of %d",
				 attr->chunk, PIER_ANNOUNCE_BLOCK);
	if (attr->length > PIER_ANNOUNCE_MAX)
		return pier_fail(EINVAL,
				 "transfer: PIER_TRANSFER_ANNOUNCE: %" PRIu64
				 " bytes are more than 16 TiB",
				 attr->length);
	return 0;
}

int pier_check_announced_ranges(const struct pier_remaining *remaining, uint64_t length)
{
	for (uint32_t i = 0; i < remaining->count; i++) {
		struct pier_range range = remaining->ranges[i];
		uint64_t end = range.offset + range.length;

		if (range.offset % PIER_ANNOUNCE_BLOCK ||
		    (end % PIER_ANNOUNCE_BLOCK && end != length))
			return pier_fail(EINVAL,
					 "transfer: PIER_TRANSFER_ANNOUNCE: the state "
					 "has a missing range [%" PRIu64 ", +%" PRIu64
					 "), not in blocks of %d",
					 range.offset, range.length, PIER_ANNOUNCE_BLOCK);
	}
	return 0;
}

/* Whether the parts here that one block touches are more elements than a request has. */
static bool has_split_block(const struct pier_send_rail *rail)
{
	const struct pier_mr *mr = rail->base.mr;
	uint64_t first = 0; /* block of the part before, in the transfer */
	uint32_t count = 1; /* parts that touch it */

	for (uint32_t i = 0; mr->parts && i < mr->part_count; i++) {
		uint64_t start = mr->parts[i].start, block;

		if (start <= rail->base.offset ||
		    start >= rail->base.offset + rail->length)
			continue;
		block = (start - rail->base.offset) / PIER_ANNOUNCE_BLOCK;
		if (block != first)
			count = (start - rail->base.offset) % PIER_ANNOUNCE_BLOCK != 0;
		first = block;
		if (++count > rail->max_sge)
			return true;
	}
	return false;
}

int pier_check_announced_rail(struct pier_send_rail *rail)
{
	if (rail->base.flow.channel->attr.max_send_wr < 2)
		return pier_fail(EINVAL, "PIER_TRANSFER_ANNOUNCE: a chunk takes two "
					 "requests, and the channel's max_send_wr is 1");
	rail->max_chunk -= rail->max_chunk % PIER_ANNOUNCE_BLOCK;
	if (rail->max_chunk == 0)
		return pier_fail(EINVAL,
				 "PIER_TRANSFER_ANNOUNCE: the port's max_msg_size %u is "
				 "less than a block of %d bytes",
				 rail->base.flow.channel->max_msg_size,
				 PIER_ANNOUNCE_BLOCK);
	for (uint32_t i = 0; i < rail->part_count; i++)
		if (rail->parts[i].start % PIER_ANNOUNCE_BLOCK)
			return pier_fail(
				EINVAL,
				"PIER_TRANSFER_ANNOUNCE: a remote part ends %" PRIu64
				" bytes from the beginning, which is no "
				"multiple of %d",
				rail->parts[i].start, PIER_ANNOUNCE_BLOCK);
	if (has_split_block(rail))
		return pier_fail(EINVAL,
				 "PIER_TRANSFER_ANNOUNCE: the region has blocks of %d "
				 "bytes in more parts than the %u elements of a request",
				 PIER_ANNOUNCE_BLOCK, rail->max_sge);
	return 0;
}
