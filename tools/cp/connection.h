/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_CONNECTION_H
#define PIER_TOOLS_CP_CONNECTION_H

#include "chunk.h"
#include "digest.h"
#include "stream.h"
#include "remote/control.h"

/*
 * The connection between a sender and a receiver: the control messages, and the stream of
 * records. A receiver that passes the records on has two of them, and is the sender of
 * the second one (receive.c). docs/design/tools.md draws the states.
 */
enum connection_state {
	CONNECTION_OPENING, /* both sides speak in a fixed order: control_expect() */
	CONNECTION_FLOWING, /* the stream flows */
	/* It is being restored. */
	CONNECTION_BROKEN,   /* the channels are to be reset */
	CONNECTION_CALLED,   /* the same, and the other side has sent FRAME_SETUP */
	CONNECTION_OFFERED,  /* FRAME_SETUP was sent, and that of the other side is due */
	CONNECTION_ANSWERED, /* both have arrived: the channels are to be connected */
	CONNECTION_CONNECTED, /* FRAME_READY was sent, and that of the other side is due
			       */
	CONNECTION_REPORTED,  /* in a chain: it failed, and FRAME_RELINK is due */
	/* Nothing restores it any more. */
	CONNECTION_ENDED, /* FRAME_END has arrived; the stream may still be read */
	CONNECTION_IDLE,  /* the stream is over, and the receiver commits */
	CONNECTION_DONE,  /* it has done so */
};

struct connection {
	enum connection_state state;
	enum cp_role role;
	bool local; /* both sides are on this host */
	const struct cp_settings *settings;
	const struct cp_side *side;
	struct control *control;
	struct failure *failure; /* the same as control->failure */
	struct stream stream;
	struct workers *workers; /* their events end a wait, too */
	/* Take FRAME_FILE: 0, or -1 with the failure set. NULL: it is unexpected. */
	int (*take_file)(struct connection *connection, const struct frame *frame);
	struct setup_message peer;
	uint8_t peer_digest[CP_DIGEST_SIZE]; /* from FRAME_END */
	bool has_moved;			     /* at least one chunk has been transferred */
	bool is_proven;	  /* bytes have moved since it was made or restored */
	bool peer_is_new; /* FRAME_RELINK named it, and it has not been connected yet */
	unsigned int repairs; /* how often it was restored */
	char cause[1024];     /* why it broke, at first; "": it works */
	char lost[1024]; /* a NIC of this side that the others did without, and why */
	struct failure reported; /* to the client of a chain */
	uint64_t deadline_ns;	 /* without progress */
	uint64_t answer_ns;	 /* until then, the answer must have arrived */
	uint64_t retry_ns;	 /* no attempt to restore it begins before */
	uint64_t keepalive_ns;	 /* of the last one */
	uint64_t started_ns;	 /* when both sides were connected */
};

/* Functions that return int return 0, or -1 with the failure set. */

/* Open this side's memory and NICs. */
int open_connection(struct connection *connection, uint64_t size);
/* Exchange endpoints, connect, and wait until both sides are connected. */
int connect_sides(struct connection *connection);
void close_connection(struct connection *connection);

/*
 * The sender, the receiver and the relay work in steps until the stream is over:
 *
 *	while (...) {
 *		moved = is_restoring(connection) ? restore_connection(connection)
 *						 : ... move bytes ...;
 *		if (end_step(connection, moved, working, wake_ns) < 0)
 *			return -1;
 *	}
 *
 * moved    1: progress; 0: there is nothing to do before an event; -1: failed
 * working  the copy waits for this side; the other side then gets keepalives
 * wake_ns  the end of the wait; 0: the next event
 *
 * end_step() fails if the connection cannot be restored. A step that failed because it
 * broke is no failure: the state has changed.
 */
bool is_restoring(const struct connection *connection);
int restore_connection(struct connection *connection);
int end_step(struct connection *connection, int moved, bool working, uint64_t wake_ns);

/* Drive this side's end of the stream. Returns 1 if it has ended now, 0 if not, or -1. */
int drive_link(struct connection *connection);
/*
 * Report a failed channel call or request, with the library's error message. If the
 * channel can be restored, changes the state instead of setting the failure. Returns -1.
 */
int fail_channel(struct connection *connection, const char *step);

/* Sleep until an event, or until `wake_ns` if it is not 0; see end_step(). */
int wait_for_event(struct connection *connection, bool working, uint64_t wake_ns);
/* Call it in the middle of long work that does not wait for events. */
int keep_peer_waiting(struct connection *connection);
/* Take a frame, by the table of what may come in each state. */
int take_frame(struct connection *connection, const struct frame *frame);
/* On progress: the timeout starts again. */
void restart_timeout(struct connection *connection);

/*
 * The copy has failed. If the network may be the reason and a port of this side is down,
 * the failure begins with that, and is reported to the other side, also if it came from
 * there.
 */
void name_down_port(struct connection *connection);

#endif
