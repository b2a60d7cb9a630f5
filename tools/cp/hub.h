/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_HUB_H
#define PIER_TOOLS_CP_HUB_H

#include "nodes.h"

/*
 * The middle of a copy to several destinations, in the client. The sender and the
 * receivers form a chain: the sender writes to the first receiver, and each receiver
 * passes the stream on to the next one (receive.c). Each of them holds the conversation
 *of any copy with its neighbour. All that they say goes through the hub, which
 *
 *	passes on what neighbours say to each other: NICs, set-up, readiness
 *	repeats to all receivers what the sender says of the file, and its end
 *	collects what the receivers say of themselves, and answers the sender when all of
 *	them are done
 *	leaves out a destination that fails, and connects its neighbours to each other
 *
 * In detail (docs/design/tools.md has a table):
 *
 *	1. The servers start. When all have said their preamble or failed, the sender gets
 *	   FRAME_READY, and begins to speak.
 *	2. Each receiver opens its destination, and reports FRAME_OPENED. When all have
 *	   done so or failed, the hub tells each whether it has a next one (FRAME_CHAIN).
 *	3. Neighbours connect. When all are ready, the hub lets all of them begin. If one
 *	   fails before, nothing has been copied, and the hub ends the attempt: the client
 *	   begins again without it.
 *	4. The stream flows. If a receiver fails now, both of its neighbours get
 *	   FRAME_RELINK. They echo it, reset their channels, and restore the connection as
 *	   if theirs had broken (connection.h). Up to the echo, what they say is meant for
 *	   the old neighbour, and is dropped.
 *	5. The sender ends. Each receiver commits its file by itself.
 *
 * Servers that are alive answer pings, whatever they wait for. The hub waits for none of
 * them: it reads what is there, and keeps what a pipe has no room for.
 */

/*
 * Run until the sender has closed its pipe. The controls of all nodes that are not lost
 * are open, and their requests have been sent, or are in the outbox.
 */
void run_hub(struct hub *hub);

#endif
