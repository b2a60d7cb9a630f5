/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_RELAY_H
#define PIER_TOOLS_CP_RELAY_H

#include "transfer.h"

/*
 * Of several destinations, a receiver passes the stream on to the next one, from the
 * memory in which it arrives (<pier/stream.h>, Relays). A thread of its own holds the
 * conversation with the next receiver (struct onward) and drives the stream to it. The
 * records, tags and digest are the same on the whole way.
 */

struct relay;

/*
 * Ask the client whether this receiver has a next one, now that its destination is open.
 * *ret_relay stays NULL if not. Returns 0, or -1 with the failure set.
 */
int join_chain(struct transfer *transfer, struct relay **ret_relay);
/* Begin to connect, when transfer->link and its workers exist. */
int start_relay(struct relay *relay, struct transfer *transfer);
/* Records before this position have arrived; `last`: no others follow. */
void pass_on(struct relay *relay, uint64_t position, bool last);
/* The next receiver needs nothing before this position. NULL: there is none. */
uint64_t passed_on(struct relay *relay);
/* Whether it waits for the next receiver to connect, or for another one. NULL: no. */
bool relay_waits(struct relay *relay);
/* Stop. The control connection must still exist. NULL is allowed. */
void stop_relay(struct relay *relay, struct control *control);

#endif
