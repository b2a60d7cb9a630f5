/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_CONNECT_H
#define PIER_TOOLS_CP_CONNECT_H

#include "transfer.h"

/* Exchange endpoints, connect, and wait until both sides are connected. */
int connect_transfer(struct transfer *transfer);

/*
 * Restore the connection when no rail is left, here or on the other side: reset all
 * channels, reconnect them, and resume the stream. If it is broken afterwards, begin
 * again.
 *
 *	do {
 *		reset_transfer(transfer);
 *		reconnect_transfer(transfer, next);
 *	} while (transfer->broken);
 *
 * next  of the receiver: the position in the stream up to which it has released
 *       everything. Afterwards the sender has it in transfer->peer.next
 *
 * The deadline of the transfer applies. If the sender has already sent FRAME_END, the
 * receiver does not need the channel any more: transfer->peer_ended is set, and the
 * channel is not connected.
 */
int reset_transfer(struct transfer *transfer);
int reconnect_transfer(struct transfer *transfer, uint64_t next);

/*
 * In a chain, after a failure: if it is that of the connection to the neighbour, report
 * it to the client and wait until that names another neighbour, or the same. The failure
 * is then cleared, and transfer->broken set. Returns -1 if the failure stands.
 */
int await_relink(struct transfer *transfer);

#endif
