/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "queue.h"
#include "core/error.h"

int pier_init_queue(struct pier_queue *queue, uint32_t depth, uint32_t max_sge,
		    uint64_t first)
{
	size_t size = 1;

	while (size < depth)
		size *= 2;
	*queue = (struct pier_queue){
		.head = first,
		.tail = first,
		.limit = depth,
		.depth = depth,
		.mask = (uint32_t)(size - 1),
		.max_sge = max_sge,
		.max_aside = depth,
		.entries = calloc(size, sizeof(*queue->entries)),
		.aside = calloc(depth, sizeof(*queue->aside)),
		.keys = calloc(size * max_sge, sizeof(*queue->keys)),
	};
	if (!queue->entries || !queue->aside || !queue->keys) {
		pier_free_queue(queue);
		return pier_fail(ENOMEM, "no memory for a queue of %u requests", depth);
	}
	/*
	 * As if one round had passed: wr_ids that the caller posts directly are
	 * unlikely to match.
	 */
	for (uint64_t position = first - size; position != first; position++)
		pier_queue_entry(queue, position)->id = position;
	return 0;
}

void pier_free_queue(struct pier_queue *queue)
{
	free(queue->entries);
	free(queue->aside);
	free(queue->keys);
	queue->entries = queue->aside = NULL;
	queue->keys = NULL;
}

bool pier_queue_set_aside(struct pier_queue *queue, struct pier_entry *entry)
{
	if (queue->aside_count == queue->max_aside)
		return false;
	queue->aside[queue->aside_count++] = *entry;
	queue->kept--;
	pier_entry_set_state(entry, PIER_ENTRY_UNWATCHED);
	return true;
}

struct pier_entry *pier_queue_find_aside(const struct pier_queue *queue, uint64_t id)
{
	for (uint32_t i = 0; i < queue->aside_count; i++) {
		if (queue->aside[i].id == id)
			return &queue->aside[i];
	}
	return NULL;
}

static uint32_t *keys_of(const struct pier_queue *queue, const struct pier_entry *entry)
{
	return queue->keys + (size_t)(entry - queue->entries) * queue->max_sge;
}

uint32_t pier_queue_note_keys(struct pier_queue *queue, struct pier_entry *entry,
			      const struct ibv_sge *sg_list, uint32_t num_sge,
			      uint32_t *ret_first)
{
	uint32_t *keys = keys_of(queue, entry), count = 0;

	for (uint32_t i = 0; i < num_sge; i++) {
		/* Devices ignore the keys of empty elements. */
		if (sg_list[i].length == 0)
			continue;
		if (count == 0)
			*ret_first = sg_list[i].lkey;
		__atomic_store_n(&keys[count++], sg_list[i].lkey, __ATOMIC_RELAXED);
	}
	return count;
}

bool pier_queue_key(const struct pier_queue *queue, const struct pier_entry *entry,
		    uint32_t index, uint32_t *ret_key)
{
	uint64_t kind = __atomic_load_n(&entry->kind, __ATOMIC_RELAXED);

	if (index >= kind >> 32)
		return false;
	*ret_key = index ? keys_of(queue, entry)[index] : (uint32_t)entry->key;
	return true;
}

static bool entry_uses(const struct pier_queue *queue, const struct pier_entry *entry,
		       uint64_t kind, uint32_t lkey)
{
	const uint32_t *keys = keys_of(queue, entry);
	uint32_t count = (uint32_t)(kind >> 32);

	if (count > 0 && (uint32_t)__atomic_load_n(&entry->key, __ATOMIC_RELAXED) == lkey)
		return true;
	for (uint32_t i = 1; i < count; i++) {
		if (__atomic_load_n(&keys[i], __ATOMIC_RELAXED) == lkey)
			return true;
	}
	return false;
}

/*
 * Called by any thread, while the channel's thread posts and collects. Order, by the
 * memory model of C11 (5.1.2.4): the channel's thread writes an entry, then stores `head`
 * (release). This thread loads `head` (acquire), so entries before it are complete. Their
 * fields are atomic because an entry behind the tail may be written again meanwhile: what
 * is read then is an old or a new value, never a mixture, and can only make the answer
 * that of a moment before or after. A program that posts a region and deregisters it in
 * two threads at once orders the two itself.
 */
bool pier_queue_uses(const struct pier_queue *queue, uint32_t lkey,
		     enum pier_opcode *ret_opcode)
{
	uint64_t head = __atomic_load_n(&queue->head, __ATOMIC_ACQUIRE);
	uint64_t position = __atomic_load_n(&queue->tail, __ATOMIC_RELAXED);

	/* The tail may have moved past the head that was read. */
	for (; (int64_t)(head - position) > 0; position++) {
		const struct pier_entry *entry = pier_queue_entry(queue, position);
		uint64_t kind = __atomic_load_n(&entry->kind, __ATOMIC_RELAXED);

		if (entry_uses(queue, entry, kind, lkey)) {
			*ret_opcode = (enum pier_opcode)(uint16_t)(kind >> 16);
			return true;
		}
	}
	return false;
}
