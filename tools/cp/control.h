/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_CONTROL_H
#define PIER_TOOLS_CP_CONTROL_H

#include "cp.h"
#include "wire.h"

/*
 * The control connection: frames over a pair of pipes.
 *
 *	preamble  "\x89PIERCP\n", version (32 bits), 0 (32 bits)
 *	frame     length of the payload (32 bits), type (32 bits), payload
 *
 * Both sides send the preamble at once. All waits also end at a signal, when
 * the other side goes away or reports its failure, and after the timeout.
 */

enum {
	CP_PROTOCOL_VERSION = 3
};

enum frame_type {
	FRAME_REQUEST = 1,   /* client: settings, and the server's role and side */
	FRAME_SOURCE = 2,    /* sender: what the file is */
	FRAME_SETUP = 3,     /* both: endpoint, region, report */
	FRAME_READY = 4,     /* both: connected */
	FRAME_END = 5,	     /* sender: all was sent, the file did not change; digest */
	FRAME_DONE = 6,	     /* receiver: the destination is in its place */
	FRAME_KEEPALIVE = 7, /* both: busy with something that takes long */
	FRAME_ERROR = 8,     /* both, last: exit status and sentence */
};

struct control {
	int in, out;   /* owned; -1: closed */
	int signal_fd; /* borrowed */
	uint32_t timeout_ms;
	const char *peer;	/* host, or NULL: a process that was started here */
	bool preamble_read;	/* the other side's preamble was read */
	bool peer_closed;	/* the other side went away without a word */
	bool failure_from_peer; /* the failure is the other side's own, told by it */
	bool reason_withheld;	/* the other side is not told why connecting failed */
	struct failure *failure;
};

struct frame {
	uint32_t type;
	uint32_t length;
	uint8_t payload[WIRE_MAX];
};

/* All return 0, or -1 with control->failure set. */

int control_exchange_preambles(struct control *control);
int control_send(struct control *control, enum frame_type type,
		 const struct wire_writer *writer);
int control_receive(struct control *control, struct frame *ret_frame);
/* The next frame that is not ALIVE, which must be of this type. */
int control_expect(struct control *control, enum frame_type type,
		   struct frame *ret_frame);
/* Fails when a signal has come. */
int control_check_signal(struct control *control);

/*
 * Something broke that may be an effect of the other side's end: listen for a
 * moment, and note its reason if there is one.
 */
void control_read_peer_failure(struct control *control);

/*
 * Tell the other side of our failure, if there is one that it does not know.
 * Call it before the channel is closed, or the other side takes that for the cause.
 */
void control_send_failure(struct control *control);

/*
 * Tell the other side, a receiver, and listen for its last word. Returns whether
 * that was FRAME_DONE: the destination was in its place before our failure came.
 */
bool control_send_failure_unless_done(struct control *control);
void control_close(struct control *control);

#endif
