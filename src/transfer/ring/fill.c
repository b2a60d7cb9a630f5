/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "channel/channel.h"
#include "core/checked.h"
#include "core/error.h"
#include "fill.h"
#include "region/mr.h"
#include "transfer/rail.h"

/* From the reads of a fill to the requests of its channels. */

void pier_fill_free(struct pier_fill *fill)
{
	free(fill->items);
	free(fill->requests);
	free(fill->places);
	free(fill->legs);
}

void pier_fill_fail(struct pier_fill *fill, int error, const char *sentence)
{
	if (fill->error)
		return;
	fill->error = error;
	snprintf(fill->sentence, sizeof(fill->sentence), "%s", sentence);
}

void pier_fill_end_requests(struct pier_fill *fill, uint32_t count)
{
	fill->open -= count;
	if (fill->open == 0)
		fill->state = PIER_FILL_ENDED;
}

uint32_t pier_fill_missing(const struct pier_fill *fill)
{
	uint32_t missing = 0;

	for (uint32_t i = 0; i < fill->item_count; i++)
		missing += fill->items[i].left > 0;
	return missing;
}

/* Room for one more element of an array. Returns false without memory. */
static bool grow_array(void *array, size_t element, uint32_t count, uint32_t *room)
{
	uint32_t wanted = *room ? 2 * *room : 16;
	void *grown;

	if (count < *room)
		return true;
	if (wanted < *room)
		return false;
	grown = reallocarray(*(void **)array, wanted, element);
	if (!grown)
		return false;
	*(void **)array = grown;
	*room = wanted;
	return true;
}

/* Both arrays have the same number of elements. */
static bool grow_requests(struct pier_fill *fill)
{
	uint32_t room = fill->request_room;

	return grow_array(&fill->places, sizeof(*fill->places), fill->request_count,
			  &room) &&
	       grow_array(&fill->requests, sizeof(*fill->requests), fill->request_count,
			  &fill->request_room);
}

/*
 * Add a request for a part of an item, which ends at a seam of its source, at a seam of
 * the region, or at the longest message.
 *
 * Returns its length, or -ENOMEM.
 */
static int64_t add_request(const struct pier_ring_memory *memory, struct pier_fill *fill,
			   struct pier_ring_place place, struct pier_remote remote,
			   uint32_t length)
{
	struct ibv_sge sge;

	if (!grow_requests(fill))
		return pier_fail(ENOMEM, "no memory for %u requests",
				 fill->request_count + 1);
	if (length > remote.length)
		length = (uint32_t)remote.length;
	sge = pier_rail_element(memory->mr, memory->mr->iova + place.offset, length);
	remote.length = sge.length;
	fill->places[fill->request_count] = place;
	fill->requests[fill->request_count++] = (struct pier_read_pair){
		.scatter = { sge.addr, sge.length, sge.lkey },
		.remote = remote,
	};
	return sge.length;
}

/* The bytes of a source from `offset` to the end of a part. Errors: -ERANGE. */
static int find_remote(const struct pier_ring_source *source, uint64_t offset,
		       struct pier_remote *ret_remote)
{
	uint64_t left = offset;

	for (uint32_t i = 0; i < source->count; i++) {
		const struct pier_remote *part = &source->parts[i];

		if (left < part->length) {
			*ret_remote = pier_remote_sub_unchecked(part, left,
								part->length - left);
			return 0;
		}
		left -= part->length;
	}
	return pier_fail(ERANGE, "the source ends before offset %" PRIu64, offset);
}

static int plan_item(const struct pier_ring_memory *memory, struct pier_fill *fill,
		     uint32_t number, const struct pier_ring_source *source)
{
	const struct pier_ring_read *read = &fill->items[number].read;
	uint64_t start = fill->offset + read->offset;
	uint32_t longest = source->channel->max_msg_size;
	struct pier_remote remote = { 0 };
	int64_t taken;

	for (uint32_t done = 0; done < read->length; done += (uint32_t)taken) {
		struct pier_ring_place place = { start + done, number };
		uint32_t left = read->length - done;

		taken = find_remote(source, read->remote_offset + done, &remote);
		if (taken == 0)
			taken = add_request(memory, fill, place, remote,
					    left < longest ? left : longest);
		if (taken < 0)
			return pier_fail_because((int)-taken, "read %u of a fill",
						 number);
	}
	return 0;
}

/* A leg of the channel for the requests that follow. Errors: -ENOMEM. */
static int add_leg(struct pier_fill *fill, struct pier_channel *channel)
{
	if (!grow_array(&fill->legs, sizeof(*fill->legs), fill->leg_count,
			&fill->leg_room))
		return pier_fail(ENOMEM, "no memory for %u channels",
				 fill->leg_count + 1);
	fill->legs[fill->leg_count++] = (struct pier_ring_leg){
		.channel = channel, .fill = fill, .next = fill->request_count
	};
	return 0;
}

static bool has_leg(const struct pier_fill *fill, const struct pier_channel *channel)
{
	for (uint32_t i = 0; i < fill->leg_count; i++) {
		if (fill->legs[i].channel == channel)
			return true;
	}
	return false;
}

/* All requests on the channel of item `first`, which is the first one there. */
static int plan_leg(const struct pier_ring_memory *memory, struct pier_fill *fill,
		    const struct pier_ring_source *sources, uint32_t first)
{
	struct pier_channel *channel = sources[fill->items[first].read.source].channel;
	int error = 0;

	if (channel->pd != memory->pd)
		return pier_fail(EINVAL,
				 "the channel of source %u is in another "
				 "protection domain than the ring",
				 fill->items[first].read.source);
	pier_clear_error();
	error = pier_rail_check_channel(channel, true);
	if (error)
		return pier_fail_because(-error, "source %u of a fill",
					 fill->items[first].read.source);
	error = add_leg(fill, channel);
	for (uint32_t i = first; i < fill->item_count && !error; i++) {
		const struct pier_ring_item *item = &fill->items[i];

		if (item->left > 0 && sources[item->read.source].channel == channel)
			error = plan_item(memory, fill, i, &sources[item->read.source]);
	}
	if (!error)
		fill->legs[fill->leg_count - 1].end = fill->request_count;
	return error;
}

static int check_item(const struct pier_ring_memory *memory,
		      const struct pier_ring_item *item, uint32_t number,
		      uint32_t source_count)
{
	const struct pier_ring_read *read = &item->read;

	if (!pier_range_fits(read->offset, read->length, memory->slot_size))
		return pier_fail(ERANGE,
				 "read %u of a fill: offset %" PRIu64 " and length %u "
				 "leave the slot of %" PRIu64 " bytes",
				 number, read->offset, read->length, memory->slot_size);
	if (item->left == 0)
		return 0;
	if (read->source >= source_count)
		return pier_fail(ERANGE, "read %u of a fill: source %u of %u", number,
				 read->source, source_count);
	return 0;
}

/* A read of which a part has arrived is read again. */
int pier_fill_plan(const struct pier_ring_memory *memory, struct pier_fill *fill,
		   const struct pier_ring_source *sources, uint32_t source_count)
{
	int error = 0;

	fill->request_count = fill->leg_count = 0;
	for (uint32_t i = 0; i < fill->item_count && !error; i++)
		error = check_item(memory, &fill->items[i], i, source_count);
	for (uint32_t i = 0; i < fill->item_count && !error; i++) {
		struct pier_ring_item *item = &fill->items[i];

		if (item->left > 0 && !has_leg(fill, sources[item->read.source].channel))
			error = plan_leg(memory, fill, sources, i);
		item->left = item->left ? item->read.length : 0;
	}
	return error;
}
