/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_SETUP_HANDSHAKE_H
#define PIER_CHANNEL_SETUP_HANDSHAKE_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <pier/endpoint.h>

/*
 * The messages of a handshake over two file descriptors of the caller. Their flags stay
 * as they are, no signal is raised, and bytes after the handshake stay in the stream.
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
	int64_t deadline;	 /* see core/deadline.h */
	bool write_broken;	 /* the peer has closed its reading end */
	struct pollfd wanted[2]; /* to read and to write; -1: not */
};

/* Write the header. The caller then writes `length` bytes of payload after it. */
uint8_t *pier_begin_message(struct pier_message *message, enum pier_message_type type,
			    size_t length);

#endif
