/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "rail.h"
#include "region/bounce.h"
#include "region/mr.h"
#include "region/sync.h"
#include "core/checked.h"
#include "core/error.h"

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
