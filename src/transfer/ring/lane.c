/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "core/deadline.h"
#include "core/error.h"
#include "lane.h"
#include "region/sync.h"

enum {
	DOORBELL = 32, /* requests that pier_channel_post_reads() posts at once */
};

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

	pier_fill_fail(leg->fill, pier_flow_cause(&lane->flow, error), sentence);
	lane->leg = leg->behind;
	pier_fill_end_requests(leg->fill, leg->end - leg->next);
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
		pier_fill_fail(fill, error, pier_error_message());
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
		pier_fill_fail(chunk.owner, lane->flow.error, lane->flow.sentence);
	/* After a reset the lane continues on the new connection. */
	if (!lane->flow.channel->broken)
		lane->flow.error = 0;
	post_lane(lanes, lane, now);
	if (!chunk.error)
		deliver_chunk(lanes, &chunk);
	if (lanes->memory->bounced)
		lane->flow.active_at = pier_now();
	pier_fill_end_requests(chunk.owner, chunk.length);
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
