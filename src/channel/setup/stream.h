/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_SETUP_STREAM_H
#define PIER_CHANNEL_SETUP_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <pier/endpoint.h>

/*
 * The messages of a handshake over two file descriptors of the caller. Their flags stay
 * as they are, no signal is raised, and bytes behind the handshake stay in the stream.
 * docs/wire.md describes the messages.
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
	size_t have;   /* bytes read or written so far */
	size_t length; /* of header and payload together */
	enum pier_message_type type;
};

struct pier_stream {
	int read_fd, write_fd;
	int64_t deadline;  /* see core/deadline.h */
	bool write_broken; /* the peer has closed its reading end */
};

/* Write the header. The caller then writes `length` bytes of payload behind it. */
uint8_t *pier_begin_message(struct pier_message *message, enum pier_message_type type,
			    size_t length);

/*
 * Send one message and receive one, in the order that the peer allows. `in` begins with
 * `have` 0; each of the two that is complete already is left as it is.
 *
 * A peer that has closed its end may have sent the reason before. A write that fails
 * for that reason sets write_broken, and reading continues.
 *
 * Errors: -ETIMEDOUT; -ECONNRESET the peer closed the connection; -EBADMSG and
 * -EPROTONOSUPPORT an invalid message; others of poll(2), read(2) and write(2).
 */
int pier_exchange_messages(struct pier_stream *stream, struct pier_message *out,
			   struct pier_message *in);

/* Whether bytes, or the end of the stream, can be read without waiting. */
bool pier_stream_is_readable(const struct pier_stream *stream);

/* Send a last message if that is possible without waiting. */
void pier_try_send_message(struct pier_stream *stream, struct pier_message *out);

#endif
