/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_SEGMENTS_H
#define PIER_TOOLS_CP_SEGMENTS_H

#include "source.h"
#include "target.h"

/*
 * With --continue, both sides agree on the segments that the receiver keeps (list.h)
 * before the transfer. The receiver reads those that an earlier copy may have written,
 * and sends their tags in a FRAME_SEGMENTS. The sender reads the same segments of its
 * file, and answers with a FRAME_KEPT that has a byte for each of them: whether the tags
 * are equal. While it does, the receiver already reads the next. An empty FRAME_SEGMENTS
 * is the last, and has no answer. Both send keepalives meanwhile.
 */

/* Functions return 0, or -1 with the failure set. */

/* Of the receiver, after open_target(). */
int offer_segments(struct transfer *transfer, struct target *target);
/* Of the sender, after send_sources(). */
int compare_segments(struct transfer *transfer, struct sources *sources);

#endif
