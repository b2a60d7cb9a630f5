/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TRANSFER_RECV_RAIL_H
#define PIER_TRANSFER_RECV_RAIL_H

#include <pier/receiver.h>

#include "rail.h"
#include "remaining.h"

/* One rail of a receiver: its receives are the requests in flight. */
struct pier_recv_rail {
	struct pier_rail_base base;
	uint32_t resets; /* of the channel, when the receives were posted */
	struct pier_work *ring;
};

/*
 * Check what the caller gave.
 *
 * what, index  for error sentences: the rail of a "receiver" or "transfer"
 * predecessor  an earlier rail on the same connection, whose receives
 *              pier_recv_rail_inherit() takes over later; NULL: the channel must have
 *              none
 *
 * Errors: those of pier_receiver_begin(). Nothing is left to free.
 */
int pier_recv_rail_init(struct pier_recv_rail *rail, const char *what, uint32_t index,
			const struct pier_receiver_rail *given, uint64_t length,
			const struct pier_recv_rail *predecessor);
void pier_recv_rail_free(struct pier_recv_rail *rail);

/* Whether its channel still has the receives that were posted. */
bool pier_recv_rail_is_alive(const struct pier_recv_rail *rail);

/* Take over the receives of a rail that is alive. */
void pier_recv_rail_inherit(struct pier_recv_rail *rail,
			    struct pier_recv_rail *predecessor);

/* Give the rail up: a channel that has receives of it is stopped. */
void pier_recv_rail_release(struct pier_recv_rail *rail);

/*
 * Post as many receives as possible. 0, or how the rail failed; it also fails if its
 * channel was reset.
 */
int pier_recv_rail_post(struct pier_recv_rail *rail);

/* The rail fails: nothing is posted nor arrives any more; the rest can be taken. */
void pier_recv_rail_stop(struct pier_recv_rail *rail, int error, const char *sentence);

/*
 * Take the oldest receive, if it has completed. If it completed with an error, the rail
 * fails: it posts no more receives, but those that completed earlier can still be taken.
 *
 * Returns 1 and its result, or 0.
 */
int pier_recv_rail_take(struct pier_recv_rail *rail, struct pier_result *ret_result);

/*
 * Polling for a send collects receives, too. If some are still to be taken, no event
 * announces them: the next pier_channel_arm() does.
 */
void pier_recv_rail_note_unseen(const struct pier_recv_rail *rail);

#endif
