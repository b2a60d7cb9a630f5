/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_OUTGOING_H
#define PIER_SOFT_OUTGOING_H

#include <stdint.h>

#include "frame.h"
#include "link.h"

/* The frames that a link is going to send. With the engine locked. */

static inline struct soft_frame *pier_soft_frame_at(struct soft_link *link,
						    uint32_t index)
{
	return &link->frames[(link->first_frame + index) % SOFT_MAX_FRAMES];
}

/* Appends a frame that is a header only; the caller adds where its payload comes from. */
struct soft_frame *pier_soft_queue_frame(struct soft_link *link,
					 const struct soft_header *header);
/* Drops requests that have not begun; answers stay. */
void pier_soft_drop_queued_requests(struct soft_link *link);

#endif
