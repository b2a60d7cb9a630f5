/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TRANSFER_STREAM_RECV_STREAM_H
#define PIER_TRANSFER_STREAM_RECV_STREAM_H

#include "transfer/ends.h"

/* Begin, or begin again after channels were reset. */
void pier_recv_stream_start(struct pier_receiver *receiver);

/*
 * Handle a completed receive. The peer is not trusted.
 *
 * ret_chunk  what is new, as a range of the buffer; of no bytes for a note
 *
 * Errors: -EBADMSG.
 */
int pier_recv_stream_take(struct pier_receiver *receiver,
			  const struct pier_result *result, struct pier_range *ret_chunk);
/* After a chunk was delivered: find out how far there is no gap. */
void pier_recv_stream_advance(struct pier_receiver *receiver);

/* Tell the peer the most urgent news. */
void pier_recv_stream_tell(struct pier_receiver *receiver, int64_t now);
/* Drop the note in flight: the receiver has ended, or is destroyed. */
void pier_recv_stream_end(struct pier_receiver *receiver);
/* Whether everything was released, and the peer knows it or cannot be told. */
bool pier_recv_stream_is_complete(const struct pier_receiver *receiver);
/* Whether the peer is still to be told that the stream ends with an error. */
bool pier_recv_stream_owes_note(const struct pier_receiver *receiver);
bool pier_recv_stream_has_news(const struct pier_drive *drive);

#endif
