/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "queue.h"
#include "util/error.h"

int pier_init_queue(struct pier_queue *queue, uint32_t depth, uint32_t max_sge,
		    uint64_t first)
{
	size_t size = 1;

	while (size < depth)
		size *= 2;
	*queue = (struct pier_queue){
		.head = first,
		.tail = first,
		.depth = depth,
		.mask = (uint32_t)(size - 1),
		.max_sge = max_sge,
		.entries = calloc(size, sizeof(*queue->entries)),
		.aside = calloc(depth, sizeof(*queue->aside)),
		.keys = calloc(size * max_sge, sizeof(*queue->keys)),
	};
	if (!queue->entries || !queue->aside || !queue->keys) {
		pier_free_queue(queue);
		return pier_fail(ENOMEM, "no memory for a queue of %u requests", depth);
	}
	/* As if a round had been before: nobody else's wr_id is likely to be one of
	 * these. */
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
	if (queue->aside_count == queue->depth)
		return false;
	queue->aside[queue->aside_count++] = *entry;
	entry->state = PIER_ENTRY_UNWATCHED;
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

void pier_queue_note_keys(struct pier_queue *queue, struct pier_entry *entry,
			  const struct ibv_sge *sg_list, int num_sge)
{
	uint32_t *keys = keys_of(queue, entry), count = 0;

	for (int i = 0; i < num_sge; i++) {
		/* Devices do not look at the keys of empty elements. */
		if (sg_list[i].length == 0)
			continue;
		__atomic_store_n(count == 0 ? &entry->first_key : &keys[count],
				 sg_list[i].lkey, __ATOMIC_RELAXED);
		count++;
	}
	__atomic_store_n(&entry->key_count, count, __ATOMIC_RELAXED);
}

static bool entry_uses(const struct pier_queue *queue, const struct pier_entry *entry,
		       uint32_t lkey)
{
	const uint32_t *keys = keys_of(queue, entry);
	uint32_t count = __atomic_load_n(&entry->key_count, __ATOMIC_RELAXED);

	for (uint32_t i = 0; i < count; i++) {
		if (__atomic_load_n(i == 0 ? &entry->first_key : &keys[i],
				    __ATOMIC_RELAXED) == lkey)
			return true;
	}
	return false;
}

bool pier_queue_uses(const struct pier_queue *queue, uint32_t lkey,
		     enum pier_opcode *ret_opcode)
{
	uint64_t head = __atomic_load_n(&queue->head, __ATOMIC_ACQUIRE);
	uint64_t position = __atomic_load_n(&queue->tail, __ATOMIC_RELAXED);

	/* The tail may have been moved past the head that we saw. */
	for (; (int64_t)(head - position) > 0; position++) {
		const struct pier_entry *entry = pier_queue_entry(queue, position);

		if (entry_uses(queue, entry, lkey)) {
			*ret_opcode = (enum pier_opcode)__atomic_load_n(&entry->opcode,
									__ATOMIC_RELAXED);
			return true;
		}
	}
	return false;
}
