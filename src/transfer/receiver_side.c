/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "announce.h"
#include "channel/stop.h"
#include "receiver.h"
#include "region/bounce.h"
#include "region/sync.h"
#include "core/checked.h"
#include "core/error.h"

static int check_channel(struct pier_channel *channel, bool kept)
{
	int error = pier_check_process(&channel->object);

	if (error)
		return error;
	if (channel->state == PIER_CHANNEL_FAILED)
		return pier_fail(ENOTCONN, "the channel failed to connect");
	if (channel->broken)
		return pier_fail_broken(channel);
	if (channel->attr.srq || channel->pool || channel->attr.max_recv_wr == 0)
		return pier_fail(EINVAL, "the channel has %s",
				 channel->attr.srq ? "a shared receive queue"
				 : channel->pool   ? "a receive pool"
						   : "no receives: max_recv_wr 0");
	if (!kept && pier_queue_outstanding(&channel->receives) > 0)
		return pier_fail(EBUSY,
				 "the channel has %u receives posted, which would take "
				 "what announces chunks",
				 pier_queue_outstanding(&channel->receives));
	return 0;
}

static int check_region(const struct pier_receiver_rail *given, uint64_t length)
{
	int error = pier_check_process(&given->mr->object);

	return error ? error
		     : pier_rail_check_memory(given->channel, given->mr, given->offset,
					      length);
}

int pier_side_init(struct pier_receiver_side *side, uint32_t index,
		   const struct pier_receiver_rail *given, uint64_t length,
		   const struct pier_receiver_side *keeper)
{
	int error;

	*side = (struct pier_receiver_side){
		.channel = given->channel,
		.mr = given->mr,
		.offset = given->offset,
		.size = given->channel->attr.max_recv_wr,
		.resets = given->channel->resets,
	};
	pier_clear_error();
	error = check_channel(given->channel, keeper != NULL);
	if (!error)
		error = check_region(given, length);
	if (!error) {
		side->bounced = pier_has_bounce(given->mr);
		side->direct = pier_has_direct(given->mr);
		side->ring = calloc(side->size, sizeof(*side->ring));
		if (!side->ring)
			error = pier_fail(ENOMEM, "no memory for %u receives",
					  side->size);
	}
	return error ? pier_fail_because(-error, "rail %u of a receiver", index) : 0;
}

void pier_side_free(struct pier_receiver_side *side)
{
	free(side->ring);
	*side = (struct pier_receiver_side){ 0 };
}

bool pier_side_lives(const struct pier_receiver_side *side)
{
	return !side->error && side->resets == side->channel->resets;
}

void pier_side_keep(struct pier_receiver_side *side, struct pier_receiver_side *keeper)
{
	struct pier_work *ring = side->ring;

	side->ring = keeper->ring;
	side->first = keeper->first;
	side->count = keeper->count;
	keeper->ring = ring;
	keeper->count = 0;
}

static struct pier_work take_work(struct pier_receiver_side *side)
{
	struct pier_work work = side->ring[side->first];

	side->first = (side->first + 1) % side->size;
	side->count--;
	return work;
}

void pier_side_leave(struct pier_receiver_side *side)
{
	if (side->count == 0)
		return;
	if (side->resets == side->channel->resets) {
		pier_break_channel(side->channel, -ECANCELED,
				   "its receiver was destroyed, or went on without it, "
				   "with receives posted");
		pier_stop_channel(side->channel);
	}
	while (side->count > 0)
		pier_work_drop(side->channel, take_work(side));
}

/*
 * What caused the flush of receives is told, where it is known. No receive is posted from
 * now on, and those that are complete now: what had come before is taken as ever.
 */
static void fail(struct pier_receiver_side *side, int error, const char *sentence)
{
	int broken = side->channel->broken;

	if (side->error)
		return;
	side->error = (error == -ECANCELED || error == -EPIPE) && broken ? broken : error;
	snprintf(side->sentence, sizeof(side->sentence), "%s", sentence);
	if (side->count == 0 || side->resets != side->channel->resets)
		return;
	pier_break_channel(side->channel, side->error, side->sentence);
	pier_stop_channel(side->channel);
}

int pier_side_post(struct pier_receiver_side *side)
{
	int error = side->error;

	/* What is left of the ring is of before: the end of that is still to be told. */
	if (!error && side->resets != side->channel->resets)
		error = pier_fail(ECANCELED, "the channel was reset");
	while (!error && side->count < side->size) {
		uint32_t last = (side->first + side->count) % side->size;

		error = pier_post_recv(side->channel, NULL, 0, &side->ring[last]);
		side->count += !error;
	}
	if (error)
		fail(side, error, pier_error_message());
	return error;
}

/* These are the peer's words, and the peer's length. */
static int read_chunk(const struct pier_result *result, uint64_t length,
		      struct pier_range *ret_chunk)
{
	struct pier_range chunk = { pier_announced_offset(result->immediate),
				    result->byte_length };

	if (result->opcode != PIER_OP_RECV_WRITE_IMM || !result->has_immediate)
		return pier_fail(EBADMSG, "the peer sent a message, and no chunk");
	if (chunk.length == 0 || !pier_range_fits(chunk.offset, chunk.length, length) ||
	    (chunk.length % PIER_ANNOUNCE_BLOCK && chunk.offset + chunk.length != length))
		return pier_fail(EBADMSG,
				 "the peer announced a chunk of %" PRIu64
				 " bytes at %" PRIu64 ", which no transfer of %" PRIu64
				 " bytes has",
				 chunk.length, chunk.offset, length);
	*ret_chunk = chunk;
	return 0;
}

/* The result of the oldest receive: 1, 0 none yet, or an error, and it is used up. */
static int take_result(struct pier_receiver_side *side, struct pier_result *ret_result)
{
	struct pier_work work = side->ring[side->first];
	int done = pier_work_poll(side->channel, work, ret_result);

	if (done < 0) {
		/* When that has stopped the channel, there is a result. */
		fail(side, done, pier_error_message());
		done = pier_work_poll(side->channel, work, ret_result);
	}
	if (done == 0)
		return 0;
	take_work(side);
	if (done > 0 && ret_result->error) {
		fail(side, ret_result->error, pier_error_message());
		done = ret_result->error;
	}
	return done;
}

int pier_side_take(struct pier_receiver_side *side, uint64_t length,
		   struct pier_range *ret_chunk)
{
	struct pier_result result;
	int done = -EAGAIN, error;

	while (side->count > 0 && done < 0)
		done = take_result(side, &result);
	if (done <= 0)
		return 0;
	error = read_chunk(&result, length, ret_chunk);
	return error ? error : 1;
}

int pier_side_land(struct pier_receiver_side *side, struct pier_range chunk)
{
	int error = 0;

	if (side->bounced)
		error = pier_copy_for_device(side->mr, side->offset + chunk.offset,
					     chunk.length);
	side->unflushed |= side->direct;
	return error;
}

int pier_side_flush(struct pier_receiver_side *side, uint64_t length)
{
	bool unflushed = side->unflushed, doubtful = side->doubtful;

	side->unflushed = side->doubtful = false;
	return unflushed ? pier_flush_for_device(side->mr, side->offset, length, doubtful)
			 : 0;
}
