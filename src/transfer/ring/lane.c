/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "channel/channel.h"
#include "channel/stop.h"
#include "lane.h"
#include "region/sync.h"
#include "core/deadline.h"
#include "core/error.h"

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

/* What is not posted yet fails. */
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
