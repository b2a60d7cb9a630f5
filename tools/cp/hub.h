/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_HUB_H
#define PIER_TOOLS_CP_HUB_H

#include "message.h"
#include "remote/start.h"
#include "party.h"

/*
 * The middle of a copy to several destinations, in the client. The sender and the
 * receivers form a chain: the sender writes to the first receiver, and each receiver
 * passes the stream on to the next one (receive.c). Each pair of
 * neighbours runs the protocol of an ordinary copy. All frames go through the hub, which
 *
 *	passes on what neighbours say to each other: NICs, set-up, readiness
 *	repeats to all receivers what the sender says of the file, and its end
 *	collects what the receivers say of themselves, and answers the sender when all of
 *	them are done
 *	leaves out a destination that fails, and connects its neighbours to each other
 *
 * docs/design/tools.md has the phases of a copy, and a table of what each frame does. If
 * a host fails before the stream flows, the hub ends the attempt, and the client begins
 * again without it. Later, both neighbours get FRAME_RELINK. They echo it, reset their
 * channels, and restore the connection as if theirs had broken (connection.h). Up to the
 * echo, what they say is meant for the old neighbour, and is dropped.
 *
 * Servers that are alive answer pings, whatever they wait for. The hub waits for none of
 * them: it reads what is there, and keeps what a pipe has no room for.
 */

enum side {
	BEFORE, /* the conversation with the one before it */
	BEHIND, /* with the one behind it; a destination's frames have FRAME_ONWARD */
};

/* Node 0 is the sender, the others are the destinations. */
struct node {
	struct control control;
	struct outbox outbox; /* of the control */
	struct inbox inbox;
	bool waits; /* its frame in the inbox is held back; see must_wait() */
	struct remote remote;
	struct failure failure; /* why it was left out */
	struct failure result;	/* of all attempts; status 0: it has been copied to */
	enum node_state {
		NODE_STARTED,
		NODE_OPEN, /* it can write the destination */
		NODE_DONE,
		NODE_OUT, /* left out, or no part of this attempt */
	} state;
	struct peers addresses; /* of the host, for soft0; "none" */
	/* Of each conversation with a neighbour; enum side. */
	uint32_t said[2];   /* how many of the frames that connect them */
	uint32_t stale[2];  /* echoes of FRAME_RELINK that are still to come */
	uint64_t heard_ns;  /* time of its last frame */
	uint64_t worked_ns; /* when it last showed that it works */
	uint64_t alive_ns;  /* when its keepalive was passed on */
	uint64_t read_ns;   /* last time that its outbox was below the limit */
	/* The connection from the one before it failed, and why; "": it works. */
	char hop_failure[1024];
	uint64_t failed_ns;
	bool had_before;    /* another destination came before it, or does so now */
	bool to_be_retried; /* it may be a neighbour that is to blame */
	bool retried;
	uint64_t blamed_ns; /* when the one behind it could not connect; 0: never */
};

struct hub {
	struct node *nodes;
	uint32_t count;
	uint32_t timeout_ms;
	bool dry_run;
	struct notices *notices; /* of the client */
	enum hub_phase {
		HUB_STARTING,
		HUB_OPENING,
		HUB_CONNECTING,
		HUB_COPYING,
		HUB_ENDING, /* the sender has ended */
		HUB_OVER,
	} phase;
	struct frame held;  /* of the sender, until the chain is known; type 0: none */
	bool sender_closed; /* its pipe, while its frame waited */
	bool again;	    /* nothing was copied: begin again with those that are left */
	uint32_t last;	    /* that was left out; 0: some are left */
	/*
	 * The last tick, by the hub's own clock and by that of the system. Its own one
	 * stands still while this process is stopped (Ctrl-Z).
	 */
	uint64_t ticked_ns, system_ns;
	uint64_t stopped_ns; /* the last stop, by the hub's own clock; 0: none */
	uint32_t status_ms;  /* how long it may wait until the next tick: STATUS_MS */
};

/* Of all destinations behind a node that are left, as far as they fit; see struct peers.
 */
void list_addresses(const struct hub *hub, uint32_t index, char *ret_list, size_t size);

/* Leave a node out, for the failure that it has. */
void lose_node(struct hub *hub, uint32_t index);

/*
 * A thread: run until the sender has closed its pipe. The controls of all
 * nodes that are not lost are open, and their requests have been sent, or are in the
 * outbox.
 */
void *run_hub(void *hub);

#endif
