/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TRANSFER_RING_LANE_H
#define PIER_TRANSFER_RING_LANE_H

#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>

#include <pier/post.h>
#include <pier/ring.h>

#include "channel/flow.h"

/* The memory of all slots. */
struct pier_ring_memory {
	struct pier_pd *pd;
	struct pier_mr *mr;
	uint64_t slot_size;
	/* As for a rail: parts of the region have a bounce buffer, or need a flush. */
	bool bounced, direct;
};

/* A read of a fill, as it was given. */
struct pier_ring_item {
	struct pier_ring_read read;
	uint32_t left; /* bytes that have not arrived */
};

/* Where the bytes of a request go. */
struct pier_ring_place {
	uint64_t offset; /* in the region */
	uint32_t item;	 /* of the fill */
};

enum pier_fill_state {
	PIER_FILL_NONE,	   /* the slot is free, or `ticket` is set and the user has it */
	PIER_FILL_RUNNING, /* `open` requests are in flight or to be posted */
	PIER_FILL_ENDED,   /* all bytes have arrived, or `error` is set */
};

/* The requests of a fill on one channel that are to be posted: [next, end). */
struct pier_ring_leg {
	struct pier_channel *channel;
	struct pier_fill *fill;
	uint32_t next, end;
	struct pier_ring_leg *behind; /* the next one of the channel */
};

/*
 * A slot and what fills it. An item becomes one request, or several if it crosses a seam
 * of the region or of the source. The requests of each channel follow each other, so that
 * pier_channel_post_reads() takes them as they are. The arrays are kept for the next
 * fill.
 */
struct pier_fill {
	enum pier_fill_state state;
	bool reported; /* pier_ring_next() has returned its error */
	/*
	 * 1 + sequence while the user may release the slot, otherwise 0. Any thread sets
	 * it to 0.
	 */
	atomic_ullong ticket;
	uint64_t sequence, length;
	uint64_t offset; /* of the slot in the region */
	uint32_t number, open;
	int error;
	char sentence[512];

	struct pier_ring_item *items;
	struct pier_read_pair *requests;
	struct pier_ring_place *places; /* of the requests */
	struct pier_ring_leg *legs;
	uint32_t item_count, item_room;
	uint32_t request_count, request_room;
	uint32_t leg_count, leg_room;
};

/* Reads that are not known to have arrived. */
uint32_t pier_fill_missing(const struct pier_fill *fill);

/*
 * Make the requests for all items that have not arrived. Errors: those of
 * pier_ring_fill(). The fill's items are then as before.
 */
int pier_fill_plan(const struct pier_ring_memory *memory, struct pier_fill *fill,
		   const struct pier_ring_source *sources, uint32_t source_count);

void pier_fill_free(struct pier_fill *fill);

/*
 * A lane is what a ring does on one channel: the flow of requests in flight, and the legs
 * that wait for room. A lane without either, whose channel is not being stopped, is idle,
 * and forgets its channel, which the user may then destroy.
 *
 * The requests of a flight were posted together. They are those of the fill that is its
 * owner, and offset and length count them.
 */
struct pier_ring_lane {
	struct pier_flow flow; /* its channel is NULL: idle */
	struct pier_ring_leg *leg, *last_leg;
};

struct pier_ring_lanes {
	const struct pier_ring_memory *memory;
	int stall_ms;
	struct pier_ring_lane *lanes;
	uint32_t count;
	struct pollfd *fds; /* for each lane, and one more */
	bool cancelling;    /* post no more */
	uint64_t doorbells, reads, bytes;
};

/* Make lanes for the legs of a planned fill. Errors: -ENOMEM. */
int pier_lanes_reserve(struct pier_ring_lanes *lanes, const struct pier_fill *fill);

/* Give them the legs, and post what there is room for. */
void pier_lanes_post(struct pier_ring_lanes *lanes, struct pier_fill *fill);

/* Drive all lanes. Returns whether anything has completed. */
bool pier_lanes_step(struct pier_ring_lanes *lanes);

/* When a lane stalls, or its channel has stopped, at the latest; INT64_MAX: never. */
int64_t pier_lanes_deadline(const struct pier_ring_lanes *lanes);

/* Whether anything is in flight or waits for room on the channel. */
bool pier_lanes_use(const struct pier_ring_lanes *lanes,
		    const struct pier_channel *channel);

/* Requests that the devices have. */
uint32_t pier_lanes_in_flight(const struct pier_ring_lanes *lanes);

void pier_lanes_free(struct pier_ring_lanes *lanes);

#endif
