/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_SETUP_STREAM_H
#define PIER_CHANNEL_SETUP_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <pier/endpoint.h>

/*
 * The messages of a handshake over a pair of file descriptors that belong to
 * somebody else: their flags stay as they are, no signal is raised, and what
 * stands behind the handshake in the stream is left there. docs/wire.md has the
 * form of the messages.
 */

enum pier_message_type {
	PIER_MESSAGE_ENDPOINT = 1,
	PIER_MESSAGE_VERDICT = 2,
};

enum {
	PIER_MESSAGE_HEADER = 12,
	PIER_MESSAGE_MAX = PIER_MESSAGE_HEADER + PIER_ENDPOINT_WIRE_MAX,
	PIER_VERDICT_SIZE = 8,
};

struct pier_message {
	uint8_t bytes[PIER_MESSAGE_MAX];
	size_t have;   /* bytes that were read or written */
	size_t length; /* of header and payload */
	enum pier_message_type type;
};

struct pier_stream {
	int read_fd, write_fd;
	int64_t deadline;  /* see core/deadline.h */
	bool write_broken; /* the peer does not read any more */
};

/* Write the header; the payload's `length` bytes come behind it, by the caller. */
uint8_t *pier_begin_message(struct pier_message *message, enum pier_message_type type,
			    size_t length);

/*
 * Send one message and receive one, in whichever order the peer lets us.
 *
 * A peer that has closed its end may have said why before: so a write that
 * fails for that reason sets write_broken, and what there is to read is read.
 *
 * Errors: -ETIMEDOUT; -ECONNRESET the peer closed the connection; -EBADMSG and
 * -EPROTONOSUPPORT what it sent; others of poll(2), read(2) and write(2).
 */
int pier_exchange_messages(struct pier_stream *stream, struct pier_message *out,
			   struct pier_message *ret_in);

/* Send a message if that is possible without waiting: the last words. */
void pier_try_send_message(struct pier_stream *stream, struct pier_message *out);

#endif
