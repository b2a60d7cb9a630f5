/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_RECV_RECV_POOL_H
#define PIER_CHANNEL_RECV_RECV_POOL_H

#include <poll.h>

#include <pier/recv_pool.h>

#include "channel/channel.h"
#include "srq.h"

enum pier_slot_state {
	PIER_SLOT_WAITING, /* to be posted */
	PIER_SLOT_POSTED,
	PIER_SLOT_HELD, /* by the user */
};

struct pier_recv_slot {
	struct pier_recv_slot *next; /* in a list of slots of the same state */
	struct pier_scatter element;
	struct pier_work work; /* of a pool of one channel */
	enum pier_slot_state state;
	uint64_t sequence; /* of the message in it */
};

struct pier_slot_list {
	struct pier_recv_slot *first, **last;
	uint32_t count;
};

struct pier_recv_pool {
	struct pier_object object;
	struct pier_pd *pd;
	struct pier_region_user region_user; /* for all slots, whatever their state */
	struct pier_channel *channel;	     /* NULL: shared, or destroyed */
	struct pier_srq *srq;		     /* NULL: the pool of one channel */
	struct pier_recv_pool_attr attr;
	struct pier_buffer *buffer; /* NULL: the caller's region */
	struct pier_mr *mr;
	void *pointer; /* of the first slot, or NULL */

	struct pier_recv_slot *slots;
	struct pier_slot_list waiting;
	/* For one channel in the order of completion; for a shared pool only a count. */
	struct pier_slot_list posted;
	uint32_t held;
	uint32_t batch; /* slots that are posted together */
	uint64_t sequence;

	struct pollfd *fds; /* of its channels, while sleeping */
	uint32_t fd_room;
};

/* Post the waiting slots as far as there is room. Returns 0 or the error of posting. */
int pier_pool_post(struct pier_recv_pool *pool);

/* Take a slot back from the device or the user. It is posted with the next batch. */
void pier_pool_put(struct pier_recv_pool *pool, struct pier_recv_slot *slot);

static inline struct pier_recv_slot *pier_slots_take(struct pier_slot_list *list)
{
	struct pier_recv_slot *slot = list->first;

	list->first = slot->next;
	if (!list->first)
		list->last = &list->first;
	list->count--;
	return slot;
}

/* The channel is destroyed: take back its slots. */
void pier_end_pool(struct pier_channel *channel);

#endif
