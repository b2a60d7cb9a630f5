/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TRANSFER_STREAM_SEND_STREAM_H
#define PIER_TRANSFER_STREAM_SEND_STREAM_H

#include "transfer/ends.h"

/* Errors: -EINVAL a stream cannot have one of the attributes. */
int pier_check_stream_attr(const struct pier_transfer_attr *attr);

/*
 * Post receives for the peer's notes on the transfer's new rails; earlier ones must have
 * been closed. Errors: those of pier_transfer_create().
 */
int pier_send_stream_open(struct pier_transfer *transfer, uint32_t chunks);
/* Stop the channels that have receives. */
void pier_send_stream_close(struct pier_transfer *transfer);

/* One step: take the peer's notes, then check each rail. */
void pier_send_stream_take_notes(struct pier_transfer *transfer, int64_t now);
void pier_send_stream_check_rail(struct pier_transfer *transfer, uint32_t index);

/* Give back what can be repeated, and drop what the peer has released meanwhile. */
void pier_send_stream_repeat(struct pier_transfer *transfer);
/* The part of a range that there is room for. */
struct pier_range pier_send_stream_clip(const struct pier_transfer *transfer,
					struct pier_range range);
/* Tell the peer the most urgent news. */
void pier_send_stream_tell(struct pier_transfer *transfer, int64_t now);
/* At the end of a step: other calls may have collected notes meanwhile. */
void pier_send_stream_note_unseen(const struct pier_transfer *transfer);
void pier_send_stream_note_done(struct pier_transfer *transfer, int error);
/* Whether the peer is still to be told that the stream ends with an error. */
bool pier_send_stream_owes_note(const struct pier_transfer *transfer);
bool pier_send_stream_has_news(const struct pier_drive *drive);

#endif
