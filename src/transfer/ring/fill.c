/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "channel/channel.h"
#include "channel/stop.h"
#include "core/checked.h"
#include "core/deadline.h"
#include "core/error.h"
#include "fill.h"
#include "region/mr.h"
#include "region/sync.h"
#include "ring.h"
#include "transfer/rail.h"

/* From the reads of a fill to the requests of its channels. */

void pier_fill_free(struct pier_ring_fill *fill)
{
	free(fill->items);
	free(fill->requests);
	free(fill->places);
	free(fill->legs);
}

void pier_fill_record_failure(struct pier_ring_fill *fill,
			      const struct pier_channel *channel, int error,
			      const char *sentence)
{
	int broken = channel->broken;

	if (fill->error)
		return;
	fill->error = (error == -ECANCELED || error == -EPIPE) && broken ? broken : error;
	snprintf(fill->sentence, sizeof(fill->sentence), "%s", sentence);
}

void pier_fill_end_requests(struct pier_ring_fill *fill, uint32_t count)
{
	fill->open -= count;
	if (fill->open == 0)
		fill->state = PIER_FILL_ENDED;
}

uint32_t pier_fill_missing(const struct pier_ring_fill *fill)
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
static bool grow_requests(struct pier_ring_fill *fill)
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
static int64_t add_request(const struct pier_ring *ring, struct pier_ring_fill *fill,
			   struct pier_ring_place place, struct pier_remote remote,
			   uint32_t length)
{
	struct ibv_sge sge;

	if (!grow_requests(fill))
		return pier_fail(ENOMEM, "no memory for %u requests",
				 fill->request_count + 1);
	if (length > remote.length)
		length = (uint32_t)remote.length;
	sge = pier_rail_element(ring->mr, ring->mr->iova + place.offset, length);
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

static int plan_item(const struct pier_ring *ring, struct pier_ring_fill *fill,
		     uint32_t number, const struct pier_ring_source *source)
{
	const struct pier_ring_read *read = &fill->items[number].read;
	uint64_t start = pier_fill_offset(ring, fill) + read->offset;
	uint32_t longest = source->channel->max_msg_size;
	struct pier_remote remote = { 0 };
	int64_t taken;

	for (uint32_t done = 0; done < read->length; done += (uint32_t)taken) {
		struct pier_ring_place place = { start + done, number };
		uint32_t left = read->length - done;

		taken = find_remote(source, read->remote_offset + done, &remote);
		if (taken == 0)
			taken = add_request(ring, fill, place, remote,
					    left < longest ? left : longest);
		if (taken < 0)
			return pier_fail_because((int)-taken, "read %u of a fill",
						 number);
	}
	return 0;
}

/* A leg of the channel for the requests that follow. Errors: -ENOMEM. */
static int add_leg(struct pier_ring_fill *fill, struct pier_channel *channel)
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

static bool has_leg(const struct pier_ring_fill *fill, const struct pier_channel *channel)
{
	for (uint32_t i = 0; i < fill->leg_count; i++) {
		if (fill->legs[i].channel == channel)
			return true;
	}
	return false;
}

/* All requests on the channel of item `first`, which is the first one there. */
static int plan_leg(const struct pier_ring *ring, struct pier_ring_fill *fill,
		    const struct pier_ring_source *sources, uint32_t first)
{
	struct pier_channel *channel = sources[fill->items[first].read.source].channel;
	int error = 0;

	if (channel->pd != ring->pd)
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
			error = plan_item(ring, fill, i, &sources[item->read.source]);
	}
	if (!error)
		fill->legs[fill->leg_count - 1].end = fill->request_count;
	return error;
}

static int check_item(const struct pier_ring *ring, const struct pier_ring_item *item,
		      uint32_t number, uint32_t source_count)
{
	const struct pier_ring_read *read = &item->read;

	if (!pier_range_fits(read->offset, read->length, ring->attr.slot_size))
		return pier_fail(ERANGE,
				 "read %u of a fill: offset %" PRIu64 " and length %u "
				 "leave the slot of %" PRIu64 " bytes",
				 number, read->offset, read->length,
				 ring->attr.slot_size);
	if (item->left == 0)
		return 0;
	if (read->source >= source_count)
		return pier_fail(ERANGE, "read %u of a fill: source %u of %u", number,
				 read->source, source_count);
	return 0;
}

/* A read of which a part has arrived is read again. */
int pier_fill_plan(const struct pier_ring *ring, struct pier_ring_fill *fill,
		   const struct pier_ring_source *sources, uint32_t source_count)
{
	int error = 0;

	fill->request_count = fill->leg_count = 0;
	for (uint32_t i = 0; i < fill->item_count && !error; i++)
		error = check_item(ring, &fill->items[i], i, source_count);
	for (uint32_t i = 0; i < fill->item_count && !error; i++) {
		struct pier_ring_item *item = &fill->items[i];

		if (item->left > 0 && !has_leg(fill, sources[item->read.source].channel))
			error = plan_leg(ring, fill, sources, i);
		item->left = item->left ? item->read.length : 0;
	}
	return error;
}

enum {
	DOORBELL = 32, /* requests that pier_post_reads() posts at once */
};

static bool is_idle(const struct pier_ring_lane *lane)
{
	return !lane->leg && lane->count == 0;
}

/* The lane of a channel, or else an idle one, or NULL. */
static struct pier_ring_lane *find_lane(const struct pier_ring *ring,
					const struct pier_channel *channel)
{
	struct pier_ring_lane *idle = NULL;

	for (uint32_t i = 0; i < ring->lane_count; i++) {
		if (ring->lanes[i].channel == channel)
			return &ring->lanes[i];
		if (!ring->lanes[i].channel)
			idle = &ring->lanes[i];
	}
	return idle;
}

static int add_lane(struct pier_ring *ring)
{
	uint32_t count = ring->lane_count + 1;
	struct pier_ring_lane *lanes = reallocarray(ring->lanes, count, sizeof(*lanes));
	struct pollfd *fds;

	if (lanes)
		ring->lanes = lanes;
	fds = reallocarray(ring->fds, count + 1, sizeof(*fds));
	if (fds)
		ring->fds = fds;
	if (!lanes || !fds)
		return pier_fail(ENOMEM, "no memory for %u channels", count);
	lanes[ring->lane_count++] = (struct pier_ring_lane){ 0 };
	return 0;
}

/* Each chunk has at least one request of the send queue. */
static int open_lane(const struct pier_ring *ring, struct pier_ring_lane *lane,
		     struct pier_channel *channel)
{
	uint32_t size = channel->attr.max_send_wr;
	int stall_ms = ring->attr.stall_ms;
	struct pier_ring_chunk *chunks;

	if (lane->channel)
		return 0;
	if (size > lane->size) {
		chunks = reallocarray(lane->chunks, size, sizeof(*chunks));
		if (!chunks)
			return pier_fail(ENOMEM, "no memory for %u requests", size);
		lane->chunks = chunks;
		lane->size = size;
	}
	if (stall_ms == PIER_TIMEOUT_DEFAULT)
		stall_ms = channel->attr.timeout_ms;
	lane->stall_ns = (int64_t)stall_ms * 1000000;
	lane->channel = channel;
	return 0;
}

static void close_idle_lanes(struct pier_ring *ring)
{
	for (uint32_t i = 0; i < ring->lane_count; i++) {
		if (is_idle(&ring->lanes[i]))
			ring->lanes[i].channel = NULL;
	}
}

int pier_lanes_reserve(struct pier_ring *ring, const struct pier_ring_fill *fill)
{
	int error = 0;

	for (uint32_t i = 0; i < fill->leg_count && !error; i++) {
		struct pier_channel *channel = fill->legs[i].channel;

		if (!find_lane(ring, channel))
			error = add_lane(ring);
		if (!error)
			error = open_lane(ring, find_lane(ring, channel), channel);
	}
	if (error)
		close_idle_lanes(ring);
	return error;
}

static void remove_leg(struct pier_ring_lane *lane)
{
	lane->leg = lane->leg->behind;
}

/* Fail the requests that are not posted yet. */
static void fail_leg(struct pier_ring_lane *lane, int error, const char *sentence)
{
	struct pier_ring_leg *leg = lane->leg;

	pier_fill_record_failure(leg->fill, lane->channel, error, sentence);
	remove_leg(lane);
	pier_fill_end_requests(leg->fill, leg->end - leg->next);
}

/*
 * How many requests to post together: those of a doorbell, but at most half of the send
 * queue, so that the device has the next ones before it reports these. 0: no room.
 */
static uint32_t choose_count(struct pier_ring_lane *lane)
{
	uint32_t half = lane->channel->sends.depth / 2;
	uint32_t count = lane->leg->end - lane->leg->next;

	if (count > DOORBELL)
		count = DOORBELL;
	if (count > half)
		count = half ? half : 1;
	/* Other requests may have completed. */
	if (pier_channel_send_room(lane->channel) < count && lane->count == 0)
		pier_channel_poll(lane->channel);
	return pier_channel_send_room(lane->channel) >= count ? count : 0;
}

/*
 * Post one chunk. Chunks that have completed and were not taken yet have left room in the
 * send queue, but not in the lane.
 *
 * Returns whether to go on.
 */
static bool post_chunk(struct pier_ring *ring, struct pier_ring_lane *lane, int64_t now)
{
	struct pier_ring_leg *leg = lane->leg;
	struct pier_ring_chunk chunk = {
		leg->fill, leg->next, choose_count(lane), { 0 }
	};
	int error;

	if (chunk.count == 0 || lane->count == lane->size)
		return false;
	error = pier_post_reads(lane->channel, &leg->fill->requests[chunk.first],
				chunk.count, &chunk.work);
	if (error == -EAGAIN)
		return false;
	if (error) {
		fail_leg(lane, error, pier_error_message());
		return true;
	}
	if (lane->count == 0)
		lane->active_at = now;
	lane->chunks[(lane->first + lane->count++) % lane->size] = chunk;
	ring->doorbells++;
	ring->reads += chunk.count;
	leg->next += chunk.count;
	if (leg->next == leg->end)
		remove_leg(lane);
	return true;
}

static void post_lane(struct pier_ring *ring, struct pier_ring_lane *lane, int64_t now)
{
	while (lane->leg && !ring->cancelling && post_chunk(ring, lane, now))
		;
	while (lane->leg && ring->cancelling)
		fail_leg(lane, -ECANCELED, "it was cancelled");
}

void pier_lanes_post(struct pier_ring *ring, struct pier_ring_fill *fill)
{
	int64_t now = pier_now();

	for (uint32_t i = 0; i < fill->leg_count; i++) {
		struct pier_ring_leg *leg = &fill->legs[i];
		struct pier_ring_lane *lane = find_lane(ring, leg->channel);

		leg->behind = NULL;
		if (is_idle(lane))
			lane->active_at = now;
		if (lane->leg)
			lane->last_leg->behind = leg;
		else
			lane->leg = leg;
		lane->last_leg = leg;
		post_lane(ring, lane, now);
	}
	close_idle_lanes(ring);
}

/* The requests from `first` on that fill adjacent bytes. Returns their number. */
static uint32_t count_adjacent(const struct pier_ring_fill *fill, uint32_t first,
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
static void deliver_chunk(struct pier_ring *ring, const struct pier_ring_lane *lane,
			  const struct pier_ring_chunk *chunk)
{
	struct pier_ring_fill *fill = chunk->fill;
	uint32_t end = chunk->first + chunk->count, run;
	uint64_t length;
	int error = 0;

	for (uint32_t i = chunk->first; i < end && !error; i += run) {
		run = count_adjacent(fill, i, end - i, &length);
		if (ring->bounced)
			error = pier_copy_for_device(ring->mr, fill->places[i].offset,
						     length);
		for (uint32_t n = i; n < i + run && !error; n++)
			fill->items[fill->places[n].item].left -=
				fill->requests[n].scatter.length;
		ring->bytes += error ? 0 : length;
	}
	if (error)
		pier_fill_record_failure(fill, lane->channel, error,
					 pier_error_message());
}

/*
 * The result of the oldest chunk. If it cannot be found out, everything on the channel is
 * stopped. A handle that a reset of the channel has used up did not complete.
 *
 * Returns 1 and *ret_error, or 0 while it is in flight.
 */
static int poll_oldest(struct pier_ring_lane *lane, int *ret_error)
{
	struct pier_work work = lane->chunks[lane->first].work;
	struct pier_result result;
	int done = pier_work_poll(lane->channel, work, &result);

	if (done == 0)
		return 0;
	*ret_error = done < 0 ? done : result.error;
	if (done < 0 && done != -ESTALE)
		pier_work_wait(lane->channel, work, 0, NULL);
	return 1;
}

/* Post the next requests before copying, so that the device does not idle. */
static bool take_oldest(struct pier_ring *ring, struct pier_ring_lane *lane, int64_t now)
{
	struct pier_ring_chunk chunk = lane->chunks[lane->first];
	int error;

	if (!poll_oldest(lane, &error))
		return false;
	if (error)
		pier_fill_record_failure(chunk.fill, lane->channel, error,
					 pier_error_message());
	lane->first = (lane->first + 1) % lane->size;
	lane->count--;
	lane->active_at = now;
	post_lane(ring, lane, now);
	if (!error)
		deliver_chunk(ring, lane, &chunk);
	if (ring->bounced)
		lane->active_at = pier_now();
	pier_fill_end_requests(chunk.fill, chunk.count);
	return true;
}

static bool collect_lane(struct pier_ring *ring, struct pier_ring_lane *lane, int64_t now)
{
	bool taken = false;

	while (lane->count > 0 && take_oldest(ring, lane, now))
		taken = true;
	return taken;
}

/* Nothing completed for too long. */
static void end_stall(struct pier_ring *ring, struct pier_ring_lane *lane, int64_t now)
{
	int ms = (int)(lane->stall_ns / 1000000);
	char sentence[128];

	if (lane->count == 0) {
		snprintf(sentence, sizeof(sentence),
			 "the send queue was full of other requests for %d ms", ms);
		while (lane->leg)
			fail_leg(lane, -EAGAIN, sentence);
		return;
	}
	snprintf(sentence, sizeof(sentence),
		 "ring: no read completed within %d ms; everything outstanding was "
		 "stopped",
		 ms);
	pier_break_channel(lane->channel, -ETIMEDOUT, sentence);
	pier_stop_channel(lane->channel);
	collect_lane(ring, lane, now);
}

static int64_t stalls_at(const struct pier_ring_lane *lane)
{
	return is_idle(lane) ? INT64_MAX : lane->active_at + lane->stall_ns;
}

bool pier_lanes_step(struct pier_ring *ring)
{
	int64_t now = pier_now();
	bool progress = false;

	for (uint32_t i = 0; i < ring->lane_count; i++) {
		struct pier_ring_lane *lane = &ring->lanes[i];

		progress |= collect_lane(ring, lane, now);
		post_lane(ring, lane, now);
		if (now >= stalls_at(lane))
			end_stall(ring, lane, now);
	}
	close_idle_lanes(ring);
	return progress;
}

int64_t pier_lanes_deadline(const struct pier_ring *ring)
{
	int64_t deadline = INT64_MAX;

	for (uint32_t i = 0; i < ring->lane_count; i++) {
		if (stalls_at(&ring->lanes[i]) < deadline)
			deadline = stalls_at(&ring->lanes[i]);
	}
	return deadline;
}

bool pier_lanes_use(const struct pier_ring *ring, const struct pier_channel *channel)
{
	for (uint32_t i = 0; i < ring->lane_count; i++) {
		if (ring->lanes[i].channel == channel)
			return true;
	}
	return false;
}

uint32_t pier_lanes_in_flight(const struct pier_ring *ring)
{
	uint32_t requests = 0;

	for (uint32_t i = 0; i < ring->lane_count; i++) {
		const struct pier_ring_lane *lane = &ring->lanes[i];

		for (uint32_t n = 0; n < lane->count; n++)
			requests += lane->chunks[(lane->first + n) % lane->size].count;
	}
	return requests;
}

void pier_lanes_free(struct pier_ring *ring)
{
	for (uint32_t i = 0; i < ring->lane_count; i++)
		free(ring->lanes[i].chunks);
	free(ring->lanes);
	free(ring->fds);
}
