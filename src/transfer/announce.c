/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>

#include "announce.h"
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
