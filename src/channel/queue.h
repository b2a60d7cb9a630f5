/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_QUEUE_H
#define PIER_CHANNEL_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#define pier_likely(condition)	 __builtin_expect(!!(condition), 1)
#define pier_unlikely(condition) __builtin_expect(!!(condition), 0)

/* The structs, which functions compiled into callers also use. */
#include <pier/hot.h>

/*
 * One of the two queues of a queue pair: the requests that the device has. Each request
 * has a position, and positions are consecutive. Both queues of a reliable connection
 * complete in order (InfiniBand Architecture Specification, volume 1, 9.5 and 10.8.3),
 * so the completion of a request is also that of all requests before it, including
 * unsignalled ones.
 *
 * The position, with a bit for the queue, is the wr_id of a request and the id of its
 * handle. A completion therefore finds its request without a search, and a used handle
 * names nothing. Positions begin at a random number, so a handle of another channel
 * names nothing either.
 *
 * The entries of requests form a ring. When the ring wraps around to a result that
 * nobody has asked for, the result is set aside.
 *
 * Threads: only the thread that uses the channel writes. pier_queue_uses() may run on
 * any thread; it reads the fields that are accessed atomically.
 */

#define PIER_ID_SHARED	  (UINT64_C(1) << 63) /* of a shared receive queue: srq_post.h */
#define PIER_ID_RECEIVE	  (UINT64_C(1) << 62)
#define PIER_ID_POSITION  (PIER_ID_RECEIVE - 1)
/* Belongs to no ring: see keepalive.h. */
#define PIER_ID_KEEPALIVE (PIER_ID_SHARED | PIER_ID_RECEIVE)

enum {
	/* The limit for requests of one queue; a CQ cannot hold more. */
	PIER_QUEUE_MAX = 1 << 20,
};

_Static_assert(sizeof(struct pier_entry) == 64, "finding one is a shift");

/*
 * first  the position of the first request, below 2^61; all later positions then stay
 * below 2^62, however many requests there are
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

	/* The depth may have been lowered below the number of outstanding requests. */
	return outstanding < queue->depth ? queue->depth - outstanding : 0;
}

static inline struct pier_entry *pier_queue_entry(const struct pier_queue *queue,
						  uint64_t position)
{
	return &queue->entries[position & queue->mask];
}

/* Returns false if the side table is full. */
bool pier_queue_set_aside(struct pier_queue *queue, struct pier_entry *entry)
	__attribute__((cold));

/*
 * Free the entry for a position from head on, setting aside a result that nobody has
 * asked for. Returns false if the side table is full.
 */
static inline bool pier_queue_make_free(struct pier_queue *queue, uint64_t position)
{
	struct pier_entry *entry = pier_queue_entry(queue, position);

	return __builtin_expect(pier_entry_get_state(entry) != PIER_ENTRY_DONE, 1) ||
	       pier_queue_set_aside(queue, entry);
}

/* Write down the keys of a list of elements. Returns how many there are. */
uint32_t pier_queue_note_keys(struct pier_queue *queue, struct pier_entry *entry,
			      const struct ibv_sge *sg_list, uint32_t num_sge,
			      uint32_t *ret_first);

/*
 * Write down a request that will be posted.
 *
 * watched  somebody will ask for its result
 * sg_list  what the device will read or write; none for inline data
 * length   of the result
 * context  of the result
 */
static inline __attribute__((always_inline)) void pier_queue_note(
	struct pier_queue *queue, struct pier_entry *entry, uint64_t id, bool watched,
	enum pier_opcode opcode, const struct ibv_sge *sg_list, uint32_t num_sge,
	uint32_t length, void *context)
{
	uint32_t state = watched ? PIER_ENTRY_WATCHED : PIER_ENTRY_UNWATCHED;
	uint32_t keys = 1, first = 0;

	if (context) {
		state |= PIER_ENTRY_CONTEXT;
		entry->result.context = context;
	}

	if (num_sge == 1 && sg_list[0].length > 0)
		first = sg_list[0].lkey;
	else
		keys = pier_queue_note_keys(queue, entry, sg_list, num_sge, &first);
	pier_entry_write(entry, id, PIER_ENTRY_KIND(state, opcode, keys), first, length);
}

/* All requests before that position are posted. */
static inline void pier_queue_posted(struct pier_queue *queue, uint64_t head)
{
	__atomic_store_n(&queue->head, head, __ATOMIC_RELEASE);
}

/* Key `index` of a request, from 0; false: it has no such key. */
bool pier_queue_key(const struct pier_queue *queue, const struct pier_entry *entry,
		    uint32_t index, uint32_t *ret_key) __attribute__((cold));

/* A result that was set aside, or NULL. */
struct pier_entry *pier_queue_find_aside(const struct pier_queue *queue, uint64_t id)
	__attribute__((cold));

/* The entry of a watched request, posted or done; or NULL. */
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

/* The context of a request, posted or done. */
static inline void *pier_entry_context(const struct pier_entry *entry)
{
	return entry->kind & PIER_ENTRY_CONTEXT ? entry->result.context : NULL;
}

/* A watched request has completed. */
static inline void pier_queue_keep(struct pier_queue *queue, struct pier_entry *entry,
				   const struct pier_result *result)
{
	entry->result = *result;
	pier_entry_set_state(entry, PIER_ENTRY_DONE);
	queue->kept++;
}

/* Nobody will ask for the result any more. */
static inline void pier_queue_forget(struct pier_queue *queue, struct pier_entry *entry)
{
	if (__builtin_expect(queue->aside_count > 0, 0) && entry >= queue->aside &&
	    entry < queue->aside + queue->aside_count) {
		/* The last result in the side table takes its place. */
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
 * Whether an outstanding request has an element of at least one byte with that key. Any
 * thread, while the queue exists; requests that are posted or complete at the same time
 * may be missed.
 *
 * ret_opcode  of the first such request
 */
bool pier_queue_uses(const struct pier_queue *queue, uint32_t lkey,
		     enum pier_opcode *ret_opcode);

#endif
