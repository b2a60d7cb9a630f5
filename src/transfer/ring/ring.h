/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TRANSFER_RING_RING_H
#define PIER_TRANSFER_RING_RING_H

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include <pier/post.h>
#include <pier/ring.h>

#include "core/object.h"
#include "device/pd.h"

struct pier_ring_lane;

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
 * pier_post_reads() takes them as they are. The arrays are kept for the next fill.
 */
struct pier_ring_fill {
	enum pier_fill_state state;
	bool reported; /* pier_ring_next() has returned its error */
	/*
	 * 1 + sequence while the user may release the slot, otherwise 0. Any thread sets
	 * it to 0.
	 */
	atomic_ullong ticket;
	uint64_t sequence, length;
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
	struct pier_ring_fill *fill;
	uint32_t next, end;
	struct pier_ring_leg *behind; /* the next one of the channel */
};

struct pier_ring {
	struct pier_object object;
	struct pier_region_user region_user; /* for all slots, whatever their state */
	struct pier_pd *pd;
	struct pier_ring_attr attr;
	struct pier_buffer *buffer; /* NULL: the caller's region */
	struct pier_mr *mr;
	char *pointer; /* of the first slot, or NULL */
	/* As for a rail: parts of the region have a bounce buffer, or need a flush. */
	bool bounced, direct;

	struct pier_ring_fill *fills; /* one for each slot */
	uint32_t last;		      /* the slot that was taken last */
	/* The slots whose fills were not returned, oldest first; a ring buffer. */
	uint32_t *order;
	uint32_t order_first, order_count;
	uint64_t sequence;
	uint64_t doorbells, reads, bytes;

	struct pier_ring_lane *lanes;
	uint32_t lane_count;
	struct pollfd *fds; /* for each lane, and for wake_fd */
	bool cancelling;    /* post no more */

	pthread_mutex_t lock; /* a release is over when it was unlocked */
	atomic_bool woken;    /* set and cleared with `lock`, together with wake_fd */
	int wake_fd;
};

/* Whether the user has released the slot of a failed fill. Only the oldest can be. */
static inline bool pier_fill_is_given_up(const struct pier_ring_fill *fill)
{
	return fill->state == PIER_FILL_ENDED && fill->reported &&
	       atomic_load(&fill->ticket) == 0;
}

/* Whether pier_ring_begin() can take the slot. */
static inline bool pier_fill_is_free(const struct pier_ring_fill *fill)
{
	return fill->state == PIER_FILL_NONE && atomic_load(&fill->ticket) == 0;
}

/* The oldest fill that was not returned, or NULL. */
static inline struct pier_ring_fill *pier_ring_oldest(const struct pier_ring *ring)
{
	return ring->order_count ? &ring->fills[ring->order[ring->order_first]] : NULL;
}

static inline void pier_ring_remove_oldest(struct pier_ring *ring)
{
	ring->order_first = (ring->order_first + 1) % ring->attr.slots;
	ring->order_count--;
}

/* If the user has given up the oldest fill, which had failed, free its slot. */
void pier_ring_drop_released(struct pier_ring *ring);

/* The offset of a slot in the region. */
static inline uint64_t pier_fill_offset(const struct pier_ring *ring,
					const struct pier_ring_fill *fill)
{
	return ring->attr.offset + fill->number * ring->attr.slot_size;
}

/* The first error of a fill stays. */
void pier_fill_record_failure(struct pier_ring_fill *fill,
			      const struct pier_channel *channel, int error,
			      const char *sentence);

/* So many requests of the fill have ended, in whatever way. */
void pier_fill_end_requests(struct pier_ring_fill *fill, uint32_t count);

/* Reads that are not known to have arrived. */
uint32_t pier_fill_missing(const struct pier_ring_fill *fill);

/*
 * Make the requests for all items that have not arrived. Errors: those of
 * pier_ring_begin(). The fill's items are then as before.
 */
int pier_fill_plan(const struct pier_ring *ring, struct pier_ring_fill *fill,
		   const struct pier_ring_source *sources, uint32_t source_count);

void pier_fill_free(struct pier_ring_fill *fill);

#endif
