/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_STREAM_H
#define PIER_TOOLS_CP_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <pier/pier.h>

#include "message.h"

/* One NIC of a side, and what is registered with it. */
struct rail {
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_mr *mr; /* the stream's memory */
	struct pier_channel *channel;
};

/*
 * One side's memory and NICs, and the stream between the sides (<pier/stream.h>): a
 * sequence of records, which chunk.h describes. The stream's memory has room for `depth`
 * records of `chunk` bytes. Zero the struct before open_stream().
 */
struct stream {
	struct rail rails[CP_RAILS_MAX];
	uint32_t rail_count;
	struct pier_buffer *buffer;
	bool borrowed;		     /* the buffer is another stream's */
	struct pier_buffer *peer;    /* with ipc, the sender's: the receiver's buffer */
	struct pier_buffer *headers; /* with ipc, which is the stream's memory then */
	uint64_t stream_size;
	struct pier_transfer *transfer; /* the sender's end of the stream */
	struct pier_receiver *receiver; /* the receiver's */
	int result;	   /* of stream_progress(), when it was called last */
	uint64_t released; /* by the receiver: all before this position */
	bool finished;	   /* by the sender: nothing follows */
	size_t chunk;	   /* a multiple of CP_CHUNK_MIN */
	uint32_t depth;
	bool ipc;	 /* chunks are copied to `peer`; soft0 carries the headers */
	bool substitute; /* soft0, which nobody named, in place of an RDMA device */
	struct cp_report report;
};

/*
 * Agree with the other side on the NICs, and open this side. Allocates no larger and no
 * more slots than a file of `size` needs. If both sides are on this host (`local`), soft0
 * is used if no RDMA device can be.
 *
 * A relay uses the buffer of the stream that it receives from: borrow_memory() first.
 */
void borrow_memory(struct stream *stream, const struct stream *owner);
int open_stream(struct stream *stream, enum cp_role role,
		const struct cp_settings *settings, const struct cp_side *side,
		bool local, uint64_t size, struct control *control);
int stream_setup(struct stream *stream, enum cp_role role,
		 struct setup_message *ret_setup, struct failure *failure);
/* With ipc, before the receiver may free its memory. */
int stream_close_peer(struct stream *stream);
/* Close everything that is open. Returns 1 if something is still in use, which is a bug.
 */
int close_stream(struct stream *stream);

/* Where the records are. */
static inline struct pier_buffer *stream_memory(const struct stream *stream)
{
	return stream->ipc ? stream->headers : stream->buffer;
}

/* The bytes of a record with a whole chunk. */
static inline size_t stream_stride(const struct stream *stream)
{
	return PIER_STREAM_BLOCK + stream->chunk;
}

/*
 * Begin this side's end of the stream, or go on with it when all channels have been
 * reset: the receiver's before the sender's side connects, the sender's when both sides
 * are connected. Returns 0 or -errno.
 *
 * stall_ms  how long the stream waits for a sign of the other side
 * remotes   the receiver's memory, for each rail
 */
int stream_begin_receiving(struct stream *stream, int stall_ms);
int stream_begin_sending(struct stream *stream, int stall_ms,
			 const struct pier_remote *remotes);
/* The sender has extended the stream to its end. */
void stream_finish(struct stream *stream);
/* Of the sender: up to where the stream is extended. */
uint64_t stream_extended(const struct stream *stream);
/* Of the sender: up to where the receiver needs nothing any more. */
uint64_t stream_credited(const struct stream *stream);
/* Drive this side's end: 0; 1 it has ended; or -errno. */
int stream_progress(struct stream *stream);
/* Stop all channels, and with them the stream. */
void stream_stop(struct stream *stream);
/* How the rail carries the stream now; its error is 0 if it does. */
struct pier_rail_status stream_rail_status(const struct stream *stream, uint32_t index);

/* Whether a port of this side is down; then says how, and what to do. */
bool stream_find_down_port(const struct stream *stream, char *ret_text, size_t size);
/* The first broken rail; one whose peer was unreachable before one that was flushed. */
const struct rail *stream_find_broken_rail(const struct stream *stream);

#endif
