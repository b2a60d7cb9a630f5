/* SPDX-License-Identifier: BSD-3-Clause */
#include "link.h"

struct soft_frame *pier_soft_queue_frame(struct soft_link *link,
					 const struct soft_header *header)
{
	struct soft_frame *frame = pier_soft_frame_at(link, link->frame_count++);

	pier_soft_pack_header(header, frame->header);
	frame->source = SOFT_FROM_NOWHERE;
	frame->request = frame->stale = false;
	frame->length = 0;
	return frame;
}

void pier_soft_drop_queued_requests(struct soft_link *link)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < link->frame_count; i++) {
		const struct soft_frame *frame = pier_soft_frame_at(link, i);
		bool begun = i == 0 && link->sent_of_first > 0;

		if (frame->request && !begun)
			continue;
		*pier_soft_frame_at(link, kept++) = *frame;
	}
	link->frame_count = kept;
}
