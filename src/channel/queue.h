/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_QUEUE_H
#define PIER_CHANNEL_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

/* The structs, of which functions that are compiled into callers know too. */
#include <pier/hot.h>

/*
 * What the device has of one of the two queues of a queue pair. Each request has a
 * position, and the next one the next. Both queues of a reliable connection complete
 * in order (InfiniBand Architecture Specification, volume 1, 9.5 and 10.8.3), so the
 * completion of one is that of all before it, also of those that are not signalled.
 *
 * The position, with a bit for the queue, is the wr_id of a request and the id of its
 * handle: so a completion finds its request without searching, and a handle that was
 * used up names nothing. Positions begin at a random number: a handle of another
 * channel names nothing either.
 *
 * A request stands in a ring. What comes round to the place of one that has completed
 * and was not asked for yet puts that one aside.
 *
 * Threads: the one that uses the channel writes; pier_queue_uses() reads on any thread
 * what is marked as atomic, which has that one writer.
 */

#define PIER_ID_SHARED	  (UINT64_C(1) << 63) /* of a shared receive queue: srq.h */
#define PIER_ID_RECEIVE	  (UINT64_C(1) << 62)
#define PIER_ID_POSITION  (PIER_ID_RECEIVE - 1)
/* In no ring: see keepalive.h. */
#define PIER_ID_KEEPALIVE (PIER_ID_SHARED | PIER_ID_RECEIVE)

enum {
	/* Most requests of one queue: what a CQ can be asked for, and more. */
	PIER_QUEUE_MAX = 1 << 20,
};

_Static_assert(sizeof(struct pier_entry) == 64, "finding one is a shift");

/*
 * first  a number below 2^61: the position of the first request; the last one then stays
 *        below 2^62, whatever the device does
 *
 * Errors: -ENOMEM.
 */
int pier_init_queue(struct pier_queue *queue, uint32_t depth, uint32_t max_sge,
		    uint64_t first);
void pier_free_queue(struct pier_queue *queue);

static inline uint32_t pier_queue_outstanding(const struct pier_queue *queue)
{
	return (uint32_t)(queue->head - queue->tail);
}

static inline uint32_t pier_queue_room(const struct pier_queue *queue)
{
	uint32_t outstanding = pier_queue_outstanding(queue);

	/* A depth that was lowered may be below it. */
	return outstanding < queue->depth ? queue->depth - outstanding : 0;
}

static inline struct pier_entry *pier_queue_entry(const struct pier_queue *queue,
						  uint64_t position)
{
	return &queue->entries[position & queue->mask];
}

/* False: there are as many aside as there can be. */
bool pier_queue_set_aside(struct pier_queue *queue, struct pier_entry *entry)
	__attribute__((cold));

/*
 * Make the entry for a position, from head on, free: what was done there and nobody has
 * asked for is put aside. False: there are too many of those.
 */
static inline bool pier_queue_make_free(struct pier_queue *queue, uint64_t position)
{
	struct pier_entry *entry = pier_queue_entry(queue, position);

	return __builtin_expect(pier_entry_get_state(entry) != PIER_ENTRY_DONE, 1) ||
	       pier_queue_set_aside(queue, entry);
}

/* The keys of more elements than one, and how many there are. */
uint32_t pier_queue_note_keys(struct pier_queue *queue, struct pier_entry *entry,
			      const struct ibv_sge *sg_list, int num_sge,
			      uint32_t *ret_first);

/*
 * Write down what will be posted next, or after that.
 *
 * watched  somebody will ask for it
 * sg_list  what the device will read or write: none of inline data
 * length   what its result will say
 */
static inline __attribute__((always_inline)) void pier_queue_note(
	struct pier_queue *queue, struct pier_entry *entry, uint64_t id, bool watched,
	enum pier_opcode opcode, const struct ibv_sge *sg_list, int num_sge,
	uint32_t length)
{
	enum pier_entry_state state = watched ? PIER_ENTRY_WATCHED : PIER_ENTRY_UNWATCHED;
	uint32_t keys = 1, first = 0;

	if (num_sge == 1 && sg_list[0].length > 0)
		first = sg_list[0].lkey;
	else
		keys = pier_queue_note_keys(queue, entry, sg_list, num_sge, &first);
	pier_entry_write(entry, id, PIER_ENTRY_KIND(state, opcode, keys), first, length);
}

/* All before that position are posted. */
static inline void pier_queue_posted(struct pier_queue *queue, uint64_t head)
{
	__atomic_store_n(&queue->head, head, __ATOMIC_RELEASE);
}

/* One that was put aside, or NULL. */
struct pier_entry *pier_queue_find_aside(const struct pier_queue *queue, uint64_t id)
	__attribute__((cold));

/* The entry of a request that somebody watches, posted or done; or NULL. */
static inline struct pier_entry *pier_queue_find(const struct pier_queue *queue,
						 uint64_t id)
{
	struct pier_entry *entry = pier_queue_entry(queue, id);

	if (__builtin_expect(entry->id == id &&
				     pier_entry_get_state(entry) != PIER_ENTRY_UNWATCHED,
			     1))
		return entry;
	return pier_queue_find_aside(queue, id);
}

/* One that is watched has completed. */
static inline void pier_queue_keep(struct pier_queue *queue, struct pier_entry *entry,
				   const struct pier_result *result)
{
	entry->result = *result;
	pier_entry_set_state(entry, PIER_ENTRY_DONE);
	queue->kept++;
}

/* Nobody will ask for it any more. */
static inline void pier_queue_forget(struct pier_queue *queue, struct pier_entry *entry)
{
	if (__builtin_expect(queue->aside_count > 0, 0) && entry >= queue->aside &&
	    entry < queue->aside + queue->aside_count) {
		/* The last of those that were put aside comes to its place. */
		*entry = queue->aside[--queue->aside_count];
		return;
	}
	queue->kept -= pier_entry_get_state(entry) == PIER_ENTRY_DONE;
	pier_entry_set_state(entry, PIER_ENTRY_UNWATCHED);
}

/* The request at that position, and all before it, have completed. */
static inline void pier_queue_done(struct pier_queue *queue, uint64_t position)
{
	if ((int64_t)(position - queue->tail) >= 0)
		__atomic_store_n(&queue->tail, position + 1, __ATOMIC_RELAXED);
}

/*
 * Whether a request that is outstanding has an element of at least a byte with that
 * key. Any thread, while the queue is there; what happens at the same time may be missed.
 *
 * ret_opcode  of the first that has
 */
bool pier_queue_uses(const struct pier_queue *queue, uint32_t lkey,
		     enum pier_opcode *ret_opcode);

#endif
