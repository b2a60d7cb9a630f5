/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "fill.h"
#include "ring.h"
#include "core/error.h"

/* How fills begin, and begin again. */

void pier_ring_drop_released(struct pier_ring *ring)
{
	struct pier_ring_fill *fill = pier_ring_oldest(ring);

	if (!fill || !pier_fill_is_given_up(fill))
		return;
	fill->state = PIER_FILL_NONE;
	pier_ring_remove_oldest(ring);
}

static struct pier_ring_fill *find_free(struct pier_ring *ring)
{
	uint32_t number = ring->last;

	pier_ring_drop_released(ring);
	for (uint32_t i = 0; i < ring->attr.slots; i++) {
		number = number + 1 < ring->attr.slots ? number + 1 : 0;
		if (pier_fill_is_free(&ring->fills[number]))
			return &ring->fills[number];
	}
	return NULL;
}

static int copy_reads(struct pier_ring_fill *fill, const struct pier_ring_read *reads,
		      uint32_t count)
{
	struct pier_ring_item *items = fill->items;

	if (count > fill->item_room) {
		items = reallocarray(items, count, sizeof(*items));
		if (!items)
			return pier_fail(ENOMEM, "no memory for %u reads", count);
		fill->items = items;
		fill->item_room = count;
	}
	fill->item_count = count;
	for (uint32_t i = 0; i < count; i++)
		items[i] = (struct pier_ring_item){ reads[i], reads[i].length };
	return 0;
}

/* Of reads that were checked: no overflow. */
static uint64_t end_of_reads(const struct pier_ring_fill *fill)
{
	uint64_t end = 0;

	for (uint32_t i = 0; i < fill->item_count; i++) {
		const struct pier_ring_read *read = &fill->items[i].read;

		if (read->length > 0 && read->offset + read->length > end)
			end = read->offset + read->length;
	}
	return end;
}

/* Plan a fill, and post it. After an error it is as before. */
static int start_fill(struct pier_ring *ring, struct pier_ring_fill *fill,
		      const struct pier_ring_source *sources, uint32_t source_count)
{
	int error = pier_fill_plan(ring, fill, sources, source_count);

	if (!error)
		error = pier_lanes_reserve(ring, fill);
	if (error)
		return error;
	fill->error = 0;
	fill->open = fill->request_count;
	fill->state = fill->open ? PIER_FILL_RUNNING : PIER_FILL_ENDED;
	pier_lanes_post(ring, fill);
	return 0;
}

int pier_ring_begin(struct pier_ring *ring, const struct pier_ring_source *sources,
		    uint32_t source_count, const struct pier_ring_read *reads,
		    uint32_t count, uint32_t *ret_number)
{
	struct pier_ring_fill *fill;
	int error = pier_check_process(&ring->object);

	if (!error)
		error = pier_check_array(sources, source_count, "sources");
	if (!error)
		error = pier_check_array(reads, count, "reads");
	if (error)
		return error;
	fill = find_free(ring);
	if (!fill)
		return pier_fail(EAGAIN,
				 "none of the %u slots of the ring is free: release one",
				 ring->attr.slots);
	error = copy_reads(fill, reads, count);
	if (!error)
		error = start_fill(ring, fill, sources, source_count);
	if (error)
		return error;
	fill->length = end_of_reads(fill);
	fill->sequence = ring->sequence++;
	fill->reported = false;
	ring->last = fill->number;
	ring->order[(ring->order_first + ring->order_count++) % ring->attr.slots] =
		fill->number;
	if (ret_number)
		*ret_number = fill->number;
	return 0;
}

/* A fill that was begun and not returned. Errors: -ENOENT. */
static int find_fill(const struct pier_ring *ring, uint32_t number,
		     struct pier_ring_fill **ret_fill)
{
	if (number >= ring->attr.slots || ring->fills[number].state == PIER_FILL_NONE)
		return pier_fail(ENOENT, "slot %u of %u is not being filled", number,
				 ring->attr.slots);
	*ret_fill = &ring->fills[number];
	if ((*ret_fill)->state == PIER_FILL_RUNNING)
		return pier_fail(EBUSY,
				 "the fill of slot %u has not ended: %u requests "
				 "are left",
				 number, (*ret_fill)->open);
	return 0;
}

int pier_ring_retry(struct pier_ring *ring, uint32_t number,
		    const struct pier_ring_source *sources, uint32_t source_count)
{
	struct pier_ring_fill *fill = NULL;
	int error = pier_check_process(&ring->object);

	if (!error)
		error = pier_check_array(sources, source_count, "sources");
	if (error)
		return error;
	pier_ring_drop_released(ring);
	error = find_fill(ring, number, &fill);
	if (error)
		return error;
	if (!fill->error)
		return pier_fail(EALREADY, "all bytes of slot %u have arrived", number);
	error = start_fill(ring, fill, sources, source_count);
	if (error)
		return error;
	fill->reported = false;
	atomic_store(&fill->ticket, 0);
	return 0;
}

int pier_ring_missing(const struct pier_ring *ring, uint32_t number,
		      uint32_t *ret_indices, uint32_t capacity)
{
	struct pier_ring_fill *fill = NULL;
	uint32_t count = 0;
	int error = pier_check_process(&ring->object);

	if (!error)
		error = find_fill(ring, number, &fill);
	if (error)
		return error;
	for (uint32_t i = 0; i < fill->item_count; i++) {
		if (fill->items[i].left == 0)
			continue;
		if (count < capacity)
			ret_indices[count] = i;
		count++;
	}
	return (int)count;
}
