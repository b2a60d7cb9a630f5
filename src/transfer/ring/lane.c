/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "channel/channel.h"
#include "core/checked.h"
#include "core/deadline.h"
#include "core/error.h"
#include "lane.h"
#include "region/mr.h"
#include "region/sync.h"
#include "transfer/rail.h"

enum {
	DOORBELL = 32, /* requests that pier_channel_post_reads() posts at once */
};

/* From the reads of a fill to the requests of its channels. */

void pier_fill_free(struct pier_fill *fill)
{
	free(fill->items);
	free(fill->requests);
	free(fill->places);
	free(fill->legs);
}

/* The first error of a fill stays. */
static void fill_fail(struct pier_fill *fill, int error, const char *sentence)
{
	if (fill->error)
		return;
	fill->error = error;
	snprintf(fill->sentence, sizeof(fill->sentence), "%s", sentence);
}

/* So many requests of the fill have ended, in whatever way. */
static void fill_end_requests(struct pier_fill *fill, uint32_t count)
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
		      const struct pier_ring_source *sources, uint32_t source_count)
{
	const struct pier_ring_read *read = &item->read;
	const struct pier_ring_source *source;

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
	source = &sources[read->source];
	if (!source->channel || (source->count > 0 && !source->parts))
		return pier_fail(EINVAL, "source %u of a fill: %s is NULL", read->source,
				 source->channel ? "parts" : "channel");
	return 0;
}

/* A read of which a part has arrived is read again. */
int pier_fill_plan(const struct pier_ring_memory *memory, struct pier_fill *fill,
		   const struct pier_ring_source *sources, uint32_t source_count)
{
	int error = 0;

	fill->request_count = fill->leg_count = 0;
	for (uint32_t i = 0; i < fill->item_count && !error; i++)
		error = check_item(memory, &fill->items[i], i, sources, source_count);
	for (uint32_t i = 0; i < fill->item_count && !error; i++) {
		struct pier_ring_item *item = &fill->items[i];

		if (item->left > 0 && !has_leg(fill, sources[item->read.source].channel))
			error = plan_leg(memory, fill, sources, i);
		item->left = item->left ? item->read.length : 0;
	}
	return error;
}

/* Posting and taking the requests of each channel. */

static bool is_idle(const struct pier_ring_lane *lane)
{
	return !lane->leg && lane->flow.count == 0 && !lane->flow.stops_at;
}

/* The lane of a channel, or else an idle one, or NULL. */
static struct pier_ring_lane *find_lane(const struct pier_ring_lanes *lanes,
					const struct pier_channel *channel)
{
	struct pier_ring_lane *idle = NULL;

	for (uint32_t i = 0; i < lanes->count; i++) {
		if (lanes->lanes[i].flow.channel == channel)
			return &lanes->lanes[i];
		if (!lanes->lanes[i].flow.channel)
			idle = &lanes->lanes[i];
	}
	return idle;
}

static int add_lane(struct pier_ring_lanes *lanes)
{
	uint32_t count = lanes->count + 1;
	struct pier_ring_lane *grown = reallocarray(lanes->lanes, count, sizeof(*grown));
	struct pollfd *fds;

	if (grown)
		lanes->lanes = grown;
	fds = reallocarray(lanes->fds, count + 1, sizeof(*fds));
	if (fds)
		lanes->fds = fds;
	if (!grown || !fds)
		return pier_fail(ENOMEM, "no memory for %u channels", count);
	grown[lanes->count++] = (struct pier_ring_lane){ 0 };
	return 0;
}

static void close_idle_lanes(struct pier_ring_lanes *lanes)
{
	for (uint32_t i = 0; i < lanes->count; i++) {
		struct pier_ring_lane *lane = &lanes->lanes[i];

		if (!is_idle(lane))
			continue;
		lane->flow.channel = NULL;
		pier_flow_wants_no_room(&lane->flow);
	}
}

/* Each chunk has at least one request of the send queue. */
int pier_lanes_reserve(struct pier_ring_lanes *lanes, const struct pier_fill *fill)
{
	int error = 0;

	for (uint32_t i = 0; i < fill->leg_count && !error; i++) {
		struct pier_channel *channel = fill->legs[i].channel;
		struct pier_ring_lane *lane;

		if (!find_lane(lanes, channel))
			error = add_lane(lanes);
		lane = find_lane(lanes, channel);
		if (!error && !lane->flow.channel)
			error = pier_flow_open(&lane->flow, channel,
					       channel->attr.max_send_wr,
					       lanes->stall_ms);
	}
	if (error)
		close_idle_lanes(lanes);
	return error;
}

/* Fail the requests that are not posted yet. */
static void fail_leg(struct pier_ring_lane *lane, int error, const char *sentence)
{
	struct pier_ring_leg *leg = lane->leg;

	fill_fail(leg->fill, pier_flow_cause(&lane->flow, error), sentence);
	lane->leg = leg->behind;
	fill_end_requests(leg->fill, leg->end - leg->next);
}

/*
 * How many requests to post together: those of a doorbell, but at most half of the send
 * queue, so that the device has the next ones before it reports these. 0: no room.
 */
static uint32_t choose_count(struct pier_ring_lane *lane)
{
	uint32_t half = lane->flow.channel->sends.depth / 2;
	uint32_t count = lane->leg->end - lane->leg->next;

	if (count > DOORBELL)
		count = DOORBELL;
	if (count > half)
		count = half ? half : 1;
	/* Other requests may have completed. */
	if (pier_channel_send_room(lane->flow.channel) < count && lane->flow.count == 0)
		pier_channel_poll(lane->flow.channel);
	return pier_channel_send_room(lane->flow.channel) >= count ? count : 0;
}

/*
 * Post one chunk. Chunks that have completed and were not taken yet have left room in the
 * send queue, but not in the lane.
 *
 * Returns whether to go on.
 */
static bool post_chunk(struct pier_ring_lanes *lanes, struct pier_ring_lane *lane,
		       int64_t now)
{
	struct pier_ring_leg *leg = lane->leg;
	struct pier_flight chunk = { .owner = leg->fill, .offset = leg->next };
	int error = -EAGAIN;

	if (pier_flow_is_full(&lane->flow))
		return false;
	chunk.length = choose_count(lane);
	if (chunk.length > 0)
		error = pier_channel_post_reads(lane->flow.channel,
						&leg->fill->requests[leg->next],
						chunk.length, &chunk.work);
	if (error && error != -EAGAIN) {
		fail_leg(lane, error, pier_error_message());
		return true;
	}
	if (error) {
		pier_flow_refused(&lane->flow, error, now);
		return false;
	}
	pier_flow_add(&lane->flow, &chunk, now);
	lanes->doorbells++;
	lanes->reads += chunk.length;
	leg->next += chunk.length;
	if (leg->next == leg->end)
		lane->leg = leg->behind;
	return true;
}

static void post_lane(struct pier_ring_lanes *lanes, struct pier_ring_lane *lane,
		      int64_t now)
{
	while (lane->leg && !lanes->cancelling && post_chunk(lanes, lane, now))
		;
	while (lane->leg && lanes->cancelling)
		fail_leg(lane, -ECANCELED, "it was cancelled");
}

void pier_lanes_post(struct pier_ring_lanes *lanes, struct pier_fill *fill)
{
	int64_t now = pier_now();

	for (uint32_t i = 0; i < fill->leg_count; i++) {
		struct pier_ring_leg *leg = &fill->legs[i];
		struct pier_ring_lane *lane = find_lane(lanes, leg->channel);

		assert(lane); /* pier_lanes_reserve() made it */
		leg->behind = NULL;
		if (lane->leg)
			lane->last_leg->behind = leg;
		else
			lane->leg = leg;
		lane->last_leg = leg;
		post_lane(lanes, lane, now);
	}
	close_idle_lanes(lanes);
}

/* The requests from `first` on that fill adjacent bytes. Returns their number. */
static uint32_t count_adjacent(const struct pier_fill *fill, uint32_t first,
			       uint32_t count, uint64_t *ret_length)
{
	uint64_t start = fill->places[first].offset, length = 0;
	uint32_t n = 0;

	while (n < count && fill->places[first + n].offset == start + length)
		length += fill->requests[first + n++].scatter.length;
	*ret_length = length;
	return n;
}

/* The bytes of a chunk have arrived: copy them out of bounce buffers, and count them. */
static void deliver_chunk(struct pier_ring_lanes *lanes, const struct pier_flight *chunk)
{
	struct pier_fill *fill = chunk->owner;
	uint32_t first = (uint32_t)chunk->offset, end = first + chunk->length, run;
	uint64_t length;
	int error = 0;

	for (uint32_t i = first; i < end && !error; i += run) {
		run = count_adjacent(fill, i, end - i, &length);
		if (lanes->memory->bounced)
			error = pier_copy_for_device(lanes->memory->mr,
						     fill->places[i].offset, length);
		for (uint32_t n = i; n < i + run && !error; n++)
			fill->items[fill->places[n].item].left -=
				fill->requests[n].scatter.length;
		lanes->bytes += error ? 0 : length;
	}
	if (error)
		fill_fail(fill, error, pier_error_message());
}

/* Post the next requests before copying, so that the device does not idle. */
static bool take_oldest(struct pier_ring_lanes *lanes, struct pier_ring_lane *lane,
			int64_t now)
{
	struct pier_result result;
	struct pier_flight chunk;

	if (!pier_flow_take(&lane->flow, now, &chunk, &result))
		return false;
	if (chunk.error)
		fill_fail(chunk.owner, lane->flow.error, lane->flow.sentence);
	/* After a reset the lane continues on the new connection. */
	if (!lane->flow.channel->broken)
		lane->flow.error = 0;
	post_lane(lanes, lane, now);
	if (!chunk.error)
		deliver_chunk(lanes, &chunk);
	if (lanes->memory->bounced)
		lane->flow.active_at = pier_now();
	fill_end_requests(chunk.owner, chunk.length);
	return true;
}

bool pier_lanes_step(struct pier_ring_lanes *lanes)
{
	int64_t now = pier_now();
	bool progress = false;

	for (uint32_t i = 0; i < lanes->count; i++) {
		struct pier_ring_lane *lane = &lanes->lanes[i];
		int error;

		while (take_oldest(lanes, lane, now))
			progress = true;
		post_lane(lanes, lane, now);
		error = pier_flow_check(&lane->flow, now);
		/* Nothing is in flight, and there is no room. */
		while (error == -EAGAIN && lane->leg)
			fail_leg(lane, error, lane->flow.sentence);
		while (error == -EHOSTUNREACH && take_oldest(lanes, lane, now))
			;
		pier_flow_is_stopping(&lane->flow);
	}
	close_idle_lanes(lanes);
	return progress;
}

int64_t pier_lanes_deadline(const struct pier_ring_lanes *lanes)
{
	int64_t deadline = INT64_MAX;

	for (uint32_t i = 0; i < lanes->count; i++) {
		int64_t wakes_at = pier_flow_wakes_at(&lanes->lanes[i].flow);

		if (wakes_at < deadline)
			deadline = wakes_at;
	}
	return deadline;
}

bool pier_lanes_use(const struct pier_ring_lanes *lanes,
		    const struct pier_channel *channel)
{
	for (uint32_t i = 0; i < lanes->count; i++) {
		if (lanes->lanes[i].flow.channel == channel)
			return true;
	}
	return false;
}

uint32_t pier_lanes_in_flight(const struct pier_ring_lanes *lanes)
{
	uint32_t requests = 0;

	for (uint32_t i = 0; i < lanes->count; i++) {
		const struct pier_flow *flow = &lanes->lanes[i].flow;

		for (uint32_t n = 0; n < flow->count; n++)
			requests += pier_flow_at(flow, n)->length;
	}
	return requests;
}

void pier_lanes_free(struct pier_ring_lanes *lanes)
{
	for (uint32_t i = 0; i < lanes->count; i++)
		pier_flow_free(&lanes->lanes[i].flow);
	free(lanes->lanes);
	free(lanes->fds);
}
