/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TRANSFER_RING_FILL_H
#define PIER_TRANSFER_RING_FILL_H

#include <stdatomic.h>
#include <stdbool.h>

#include <pier/post.h>
#include <pier/ring.h>

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

/* The requests of a fill on one channel that are to be posted: [next, end). */
struct pier_ring_leg {
	struct pier_channel *channel;
	struct pier_fill *fill;
	uint32_t next, end;
	struct pier_ring_leg *behind; /* the next one of the channel */
};

/* The first error of a fill stays. */
void pier_fill_fail(struct pier_fill *fill, int error, const char *sentence);

/* So many requests of the fill have ended, in whatever way. */
void pier_fill_end_requests(struct pier_fill *fill, uint32_t count);

/* Reads that are not known to have arrived. */
uint32_t pier_fill_missing(const struct pier_fill *fill);

/*
 * Make the requests for all items that have not arrived. Errors: those of
 * pier_ring_fill(). The fill's items are then as before.
 */
int pier_fill_plan(const struct pier_ring_memory *memory, struct pier_fill *fill,
		   const struct pier_ring_source *sources, uint32_t source_count);

void pier_fill_free(struct pier_fill *fill);

#endif
