/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_SLOT_H
#define PIER_CHANNEL_SLOT_H

#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include <pier/channel.h>

/*
 * The requests of a channel, one slot each; sends first, then receives. A
 * request is named by its slot and by the generation of that slot, in one
 * 64-bit number that is both its wr_id and the id of its handle: so a
 * completion finds its request without searching, in any order, and a handle
 * that was used up names nothing.
 *
 * The generations of a channel begin at a random number of 44 bits: a handle
 * of another channel names nothing either.
 */

enum {
	PIER_SLOT_BITS = 20,
	PIER_SLOTS_MAX = 1 << PIER_SLOT_BITS,
};

/*
 * Threads: all of it is of the thread that uses the channel, but for what
 * pier_slots_use() reads, which runs on any thread. Those fields have this one
 * writer, whose stores are atomic, so that it may read them as they are.
 */

enum pier_slot_state {
	PIER_SLOT_FREE,
	PIER_SLOT_POSTED,
	PIER_SLOT_UNWATCHED, /* posted, and nobody will ask */
	PIER_SLOT_DONE,
};

struct pier_slot {
	uint64_t id; /* of the request that has it, or had it last */
	enum pier_slot_state state;
	uint32_t next;		 /* in the list of free ones */
	enum pier_opcode opcode; /* what was posted; atomic */
	uint32_t length;	 /* of a read: completions do not always say */
	/*
	 * The lkeys of a request that is posted, and how many; atomic, the count
	 * with release. 0 when it is not.
	 */
	uint32_t *keys;
	uint32_t key_count;
	struct pier_result result;
};

struct pier_slots {
	struct pier_slot *slots;
	uint32_t count;
	uint32_t sends;		       /* slots [0, sends) are of the send queue */
	uint32_t free_send, free_recv; /* first free ones; PIER_SLOTS_MAX: none */
	uint32_t outstanding;	       /* atomic */
	uint32_t *keys;		       /* of all slots */
};

/* How many requests there may be at once, and elements in each. */
struct pier_slot_limits {
	uint32_t sends, receives;
	uint32_t send_sge, recv_sge;
};

/* Errors: -ENOMEM. `generation` may be any number. */
int pier_init_slots(struct pier_slots *slots, const struct pier_slot_limits *limits,
		    uint64_t generation);
void pier_free_slots(struct pier_slots *slots);

/* A free slot of one of the queues, with a new id, not posted yet; or NULL. */
struct pier_slot *pier_take_slot(struct pier_slots *slots, bool receive);

/* What will be posted in it. */
static inline void pier_slot_set_opcode(struct pier_slot *slot, enum pier_opcode opcode)
{
	__atomic_store_n(&slot->opcode, opcode, __ATOMIC_RELAXED);
}

/* Whether one of the queues has so many free slots. */
bool pier_has_slots(const struct pier_slots *slots, bool receive, uint32_t count);

/* Give a slot back. */
void pier_give_slot(struct pier_slots *slots, struct pier_slot *slot);

/* The slot whose present request has that id, posted or done; or NULL. */
struct pier_slot *pier_find_slot(const struct pier_slots *slots, uint64_t id);

/*
 * From taken to posted, and from posted to done or, if nobody asks, free.
 *
 * sg_list  what the device will read or write: none of inline data
 */
void pier_slot_posted(struct pier_slots *slots, struct pier_slot *slot, bool watched,
		      const struct ibv_sge *sg_list, int num_sge);
void pier_slot_done(struct pier_slots *slots, struct pier_slot *slot,
		    const struct pier_result *result);

/*
 * Whether a request that is posted has an element of at least a byte with that
 * key. Any thread, while the slots are there.
 *
 * ret_opcode  of the first that has
 */
bool pier_slots_use(const struct pier_slots *slots, uint32_t lkey,
		    enum pier_opcode *ret_opcode);

#endif
