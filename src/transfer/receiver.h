/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TRANSFER_RECEIVER_H
#define PIER_TRANSFER_RECEIVER_H

#include <poll.h>
#include <stdbool.h>

#include <pier/receiver.h>

#include "remaining.h"
#include "core/object.h"

/*
 * One rail of a receiver: its receives are a ring of which only the oldest is asked for,
 * since they complete in order.
 */
struct pier_receiver_side {
	struct pier_channel *channel;
	struct pier_mr *mr;
	uint64_t offset;
	uint32_t resets; /* of the channel, when the receives were posted */
	bool bounced;	 /* a part of the region has a bounce buffer */
	bool direct;	 /* a part of it is device memory without one */
	bool unflushed;	 /* bytes came straight into memory that may need a flush */
	bool doubtful;	 /* also of what has a bounce buffer now: before it went on */

	struct pier_work *ring;
	uint32_t size, first, count;
	uint64_t done; /* bytes */
	int error;
	char sentence[PIER_RAIL_SENTENCE_SIZE];
};

struct pier_receiver {
	struct pier_object object;
	struct pier_receiver_attr attr; /* as given; rails are not kept */
	struct pier_receiver_side *sides;
	struct pollfd *fds; /* one for each side */
	uint32_t side_count;
	uint64_t *blocks; /* a bit for each block that has come */
	uint64_t done;
	int64_t stall_ns, alive_at;
	int64_t deadline; /* INT64_MAX: none */
	bool lost;	  /* bytes came that could not be copied */
	int flush_error;  /* all bytes came, and cannot be made visible */
	bool owes_flush;  /* when it ended last, some could not be */

	int stop; /* 0, or why it is to end: -errno */
	char reason[640];

	bool ended;
	int error; /* of one that has ended */
	char sentence[768];
};

/* It is to end. The first reason stays. */
void pier_stop_receiver(struct pier_receiver *receiver, int error, const char *reason);

/* A side has failed just now: the others go on, or it is to end. */
void pier_note_side_failure(struct pier_receiver *receiver, uint32_t index);

/*
 * Take what has come since the receiver ended, while the regions are those that it came
 * to.
 *
 * Errors: -EBADMSG, -EIO.
 */
int pier_catch_up(struct pier_receiver *receiver);

/*
 * Check what the caller gave.
 *
 * index   for sentences
 * keeper  of the same channel in the same connection, whose receives are taken over by
 *         pier_side_keep() later; or NULL: then there must be none
 *
 * Errors: those of pier_receiver_begin(). Nothing is left.
 */
int pier_side_init(struct pier_receiver_side *side, uint32_t index,
		   const struct pier_receiver_rail *given, uint64_t length,
		   const struct pier_receiver_side *keeper);
void pier_side_free(struct pier_receiver_side *side);

/* Whether its channel still has the receives that were posted. */
bool pier_side_lives(const struct pier_receiver_side *side);

/* Take over the receives of a side that lives. */
void pier_side_keep(struct pier_receiver_side *side, struct pier_receiver_side *keeper);

/* The receiver has no use for the side: a channel that has receives of it is stopped. */
void pier_side_leave(struct pier_receiver_side *side);

/*
 * Post as many receives as there can be. 0, or how the side has failed; also where its
 * channel was reset.
 */
int pier_side_post(struct pier_receiver_side *side);

/*
 * Take what the oldest receive has got, if it has completed. With an error the side
 * fails: it posts no receive any more, and what had come before can still be taken.
 *
 * Returns 1 and the chunk; 0; or -EBADMSG: no transfer of this length has that chunk.
 */
int pier_side_take(struct pier_receiver_side *side, uint64_t length,
		   struct pier_range *ret_chunk);

/*
 * A chunk is there for device code, or will be after pier_side_flush(), which tries it
 * once. 0 or -errno.
 */
int pier_side_land(struct pier_receiver_side *side, struct pier_range chunk);
int pier_side_flush(struct pier_receiver_side *side, uint64_t length);

#endif
