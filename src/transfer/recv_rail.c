/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "channel/stop.h"
#include "recv_rail.h"
#include "region/mr.h"
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
				 "announced chunks",
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

int pier_recv_rail_init(struct pier_recv_rail *rail, const char *what, uint32_t index,
			const struct pier_receiver_rail *given, uint64_t length,
			const struct pier_recv_rail *predecessor)
{
	int error;

	*rail = (struct pier_recv_rail){
		.base = {
			.channel = given->channel,
			.mr = given->mr,
			.offset = given->offset,
			.size = given->channel->attr.max_recv_wr,
		},
		.resets = given->channel->resets,
	};
	pier_clear_error();
	error = check_channel(given->channel, predecessor != NULL);
	if (!error)
		error = check_region(given, length);
	if (!error) {
		pier_rail_classify_memory(&rail->base);
		rail->ring = calloc(rail->base.size, sizeof(*rail->ring));
		if (!rail->ring)
			error = pier_fail(ENOMEM, "no memory for %u receives",
					  rail->base.size);
	}
	return error ? pier_fail_because(-error, "rail %u of a %s", index, what) : 0;
}

void pier_recv_rail_free(struct pier_recv_rail *rail)
{
	free(rail->ring);
	*rail = (struct pier_recv_rail){ 0 };
}

bool pier_recv_rail_is_alive(const struct pier_recv_rail *rail)
{
	return !rail->base.error && rail->resets == rail->base.channel->resets;
}

void pier_recv_rail_inherit(struct pier_recv_rail *rail,
			    struct pier_recv_rail *predecessor)
{
	struct pier_work *ring = rail->ring;

	rail->ring = predecessor->ring;
	rail->base.first = predecessor->base.first;
	rail->base.count = predecessor->base.count;
	predecessor->ring = ring;
	predecessor->base.count = 0;
}

static struct pier_work take_work(struct pier_recv_rail *rail)
{
	struct pier_work work = rail->ring[rail->base.first];

	rail->base.first = (rail->base.first + 1) % rail->base.size;
	rail->base.count--;
	return work;
}

void pier_recv_rail_release(struct pier_recv_rail *rail)
{
	if (rail->base.count == 0)
		return;
	if (rail->resets == rail->base.channel->resets) {
		pier_break_channel(rail->base.channel, -ECANCELED,
				   "its receiver was destroyed, or went on without it, "
				   "with receives posted");
		pier_stop_channel(rail->base.channel);
	}
	while (rail->base.count > 0)
		pier_work_drop(rail->base.channel, take_work(rail));
}

/*
 * Stop the channel even if no receive is posted: plain writes of the peer need none.
 * Chunks that arrived earlier are taken as usual.
 */
void pier_recv_rail_stop(struct pier_recv_rail *rail, int error, const char *sentence)
{
	if (!pier_rail_record_failure(&rail->base, error, sentence) ||
	    rail->resets != rail->base.channel->resets)
		return;
	pier_break_channel(rail->base.channel, rail->base.error, rail->base.sentence);
	pier_stop_channel(rail->base.channel);
}

int pier_recv_rail_post(struct pier_recv_rail *rail)
{
	int error = rail->base.error;

	/* The rest of the ring is from before the reset, and still to be taken. */
	if (!error && rail->resets != rail->base.channel->resets)
		error = pier_fail(ECANCELED, "the channel was reset");
	while (!error && rail->base.count < rail->base.size) {
		uint32_t last = (rail->base.first + rail->base.count) % rail->base.size;

		error = pier_post_recv(rail->base.channel, NULL, 0, &rail->ring[last]);
		rail->base.count += !error;
	}
	if (error)
		pier_recv_rail_stop(rail, error, pier_error_message());
	return error;
}

/* Returns 1 and the oldest receive's result; 0: none yet; an error: it is used up. */
static int take_result(struct pier_recv_rail *rail, struct pier_result *ret_result)
{
	struct pier_work work = rail->ring[rail->base.first];
	int done = pier_work_poll(rail->base.channel, work, ret_result);

	if (done < 0) {
		/* That stopped the channel, so now there is a result. */
		pier_recv_rail_stop(rail, done, pier_error_message());
		done = pier_work_poll(rail->base.channel, work, ret_result);
	}
	if (done == 0)
		return 0;
	take_work(rail);
	if (done > 0 && ret_result->error) {
		pier_recv_rail_stop(rail, ret_result->error, pier_error_message());
		done = ret_result->error;
	}
	return done;
}

int pier_recv_rail_take(struct pier_recv_rail *rail, struct pier_result *ret_result)
{
	int done = -EAGAIN;

	while (rail->base.count > 0 && done < 0)
		done = take_result(rail, ret_result);
	if (done <= 0)
		return 0;
	return 1;
}

void pier_recv_rail_note_unseen(const struct pier_recv_rail *rail)
{
	if (!rail->base.error && rail->base.channel->receives.kept > 0)
		rail->base.channel->unseen = true;
}
