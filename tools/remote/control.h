/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_REMOTE_CONTROL_H
#define PIER_TOOLS_REMOTE_CONTROL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "failure.h"
#include "wire.h"

/*
 * The control connection between a command and its server, the same command on another
 * host or in another process. It carries frames over a pair of pipes.
 *
 *	preamble  magic number (8 bytes), version (32 bits), 0 (32 bits)
 *	frame     length of the payload (32 bits), type (32 bits), payload
 *
 * Both sides send the preamble immediately. Every wait also ends on a signal, when the
 * other side closes its pipe or reports a failure, and after the timeout.
 */

enum {
	CONTROL_MAGIC_SIZE = 8
};

/* The protocol between the two sides of a command. */
struct control_protocol {
	const char *command;		   /* of pier: "cp" */
	const char *name;		   /* "copy" */
	const char *task;		   /* "the copy" */
	uint8_t magic[CONTROL_MAGIC_SIZE]; /* "\x89PIER", two letters, a newline */
	uint32_t version;
};

/* The frames of every protocol. Each protocol adds its own, with other numbers. */
enum {
	FRAME_READY = 4,     /* both: connected */
	FRAME_DONE = 6,	     /* receiver: the task is complete */
	FRAME_KEEPALIVE = 7, /* both: this side is still working */
	FRAME_ERROR = 8,     /* both, last: exit status and error message */
	FRAME_RAILS = 9,     /* both: the NICs to choose from; see rails.h */
	FRAME_PING = 16,     /* client: is the server still there? */
	FRAME_PONG = 17,     /* server, immediately: it is */
	/* Added to the type of a frame of the conversation with a third process, to which
	 * the client passes it on. */
	FRAME_ONWARD = 1 << 30,
	FRAME_NONE = 0, /* never sent: control_receive() has dealt with it */
};

struct frame {
	uint32_t type;
	uint32_t length;
	uint8_t payload[WIRE_MAX];
};

/* A frame of which not all has arrived. */
struct inbox {
	struct frame frame;
	size_t have; /* bytes */
};

/*
 * Of a process that talks to many, and must wait for none of them: what it sends is kept
 * here until there is room in the pipe.
 */
struct outbox {
	uint8_t *data;
	size_t length, size;
};

/*
 * A server's second conversation over the same pipes, which another thread holds: all of
 * its frames have FRAME_ONWARD in their type, and it also gets the keepalives.
 */
struct onward {
	pthread_mutex_t lock; /* held while a frame of either conversation is sent */
	int to; /* the other thread reads its frames from the pipe that begins here */
};

struct control {
	const struct control_protocol *protocol;
	int in, out;   /* owned; -1: closed */
	int signal_fd; /* borrowed */
	uint32_t timeout_ms;
	const char *peer;   /* the host; NULL: a process on this host */
	bool by_hand;	    /* the user started the other side: no shell is between */
	bool preamble_read; /* the other side's preamble has arrived */
	bool peer_closed; /* the other side closed its pipe without reporting a failure */
	bool failure_from_peer; /* the failure was reported by the other side */
	int waited_ms;		/* for an answer to this side's failure, in vain */
	bool answers;		/* this side knows more of it, and reports that */
	bool reason_withheld;	/* do not report why connecting failed */
	struct failure *failure;
	struct outbox *outbox;	 /* NULL: sending waits for room */
	struct onward *onward;	 /* NULL: there is one conversation */
	struct control *carrier; /* of a second conversation: the first; otherwise NULL */
};

/*
 * Block SIGINT, SIGTERM and SIGHUP and deliver them through a signalfd(2), which the
 * wait loops poll. Ignore SIGPIPE and SIGXFSZ, so that the write fails instead. Call it
 * before threads are started. Returns the descriptor, or -1.
 */
int open_signals(struct failure *failure);

static inline struct wire_reader read_frame(const struct frame *frame)
{
	return (struct wire_reader){ frame->payload, frame->length, false };
}

/* The other side, as the subject of an error message. */
const char *control_peer_name(const struct control *control);

/* A frame has values out of their range: "HOST sent an invalid WHAT". Returns -1. */
int control_fail_invalid(const struct control *control, const char *what);

/* Functions that return int return 0, or -1 with control->failure set. */

int control_exchange_preambles(struct control *control);
int control_send_preamble(struct control *control);
int control_send(struct control *control, uint32_t type,
		 const struct wire_writer *writer);
/* Does not fail if the other side has closed its pipe: its last frames can be read. */
int control_send_if_open(struct control *control, uint32_t type,
			 const struct wire_writer *writer);
int control_receive(struct control *control, struct frame *ret_frame);
/*
 * Call it when there is something to read. Returns 1 when inbox->frame is complete, or
 * the preamble (FRAME_NONE then); 0 if more is to come; or -1.
 */
int control_receive_part(struct control *control, struct inbox *inbox);
/* Write as much of the outbox as there is room for. */
void control_flush(struct control *control);
/* Receive the next frame that is neither a keepalive nor FRAME_NONE. It must be of this
 * type. */
int control_expect(struct control *control, uint32_t type, struct frame *ret_frame);
/* Fails if a signal is pending. */
int control_check_signal(struct control *control);

/*
 * Call after an error that the other side may have caused: wait a moment for its
 * failure report, and record it if there is one.
 */
void control_read_peer_failure(struct control *control);

/*
 * Report this side's failure, if there is one, unless it came from the other side and
 * this side has no answer.
 * Call it before the channel is closed; otherwise the other side reports the closed
 * channel as the cause.
 */
void control_send_failure(struct control *control);

/*
 * The same, but this waits for nothing except room in the pipe, and not for that if there
 * is an outbox. Returns whether the other side has closed its end.
 */
bool control_try_sending_failure(struct control *control);

/*
 * Report this side's failure, and wait for the other side's answer: it closes its pipe,
 * or reports a failure that explains this one and replaces it.
 */
void control_ask_for_cause(struct control *control);

/*
 * The same with a receiver that may be done. Returns whether its answer is FRAME_DONE:
 * the destination had its name before the report arrived.
 */
bool control_send_failure_unless_done(struct control *control);
/*
 * Wait a moment until the other side has closed its pipe, whatever it sends before.
 * Returns whether it has.
 */
bool control_await_close(struct control *control);
void control_close(struct control *control);

#endif
