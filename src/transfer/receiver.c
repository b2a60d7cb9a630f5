/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "announce.h"
#include "channel/channel.h"
#include "receiver.h"
#include "core/caller.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/extensible.h"

static int check_time(const char *name, int ms)
{
	if (ms > 0 || ms == PIER_TIMEOUT_DEFAULT)
		return 0;
	return pier_fail(EINVAL, "receiver: %s %d is neither more than 0 nor the default",
			 name, ms);
}

static int check_size(uint32_t rail_count, uint64_t length)
{
	if (rail_count < 1 || rail_count > PIER_RAILS_MAX)
		return pier_fail(EINVAL, "receiver: %u rails; it has 1 to %d", rail_count,
				 PIER_RAILS_MAX);
	if (length > PIER_ANNOUNCE_MAX)
		return pier_fail(EINVAL,
				 "receiver: %" PRIu64 " bytes are more than 16 TiB",
				 length);
	return 0;
}

static int read_attr(const struct pier_receiver_attr *given,
		     struct pier_receiver_attr *ret_attr)
{
	int error;

	if (!given)
		return pier_fail(EINVAL, "receiver: the attributes are NULL");
	pier_receiver_attr_init(ret_attr);
	/* Its first version had all that is in there. */
	error = pier_read_extensible("receiver", "pier_receiver_attr_init()", given,
				     sizeof(*given), sizeof(*given), ret_attr);
	if (!error && ret_attr->flags)
		error = pier_fail(EINVAL, "receiver: flags %#x are not known",
				  (unsigned int)ret_attr->flags);
	if (!error)
		error = check_time("stall_ms", ret_attr->stall_ms);
	if (!error)
		error = check_time("timeout_ms", ret_attr->timeout_ms);
	return error ? error : check_size(ret_attr->rail_count, ret_attr->length);
}

static void free_sides(struct pier_receiver_side *sides, uint32_t count)
{
	for (uint32_t i = 0; sides && i < count; i++)
		pier_side_free(&sides[i]);
	free(sides);
}

/* The side of before whose receives can be used for a channel, or NULL. */
static struct pier_receiver_side *find_keeper(const struct pier_receiver *receiver,
					      const struct pier_channel *channel)
{
	for (uint32_t i = 0; i < receiver->side_count; i++) {
		struct pier_receiver_side *side = &receiver->sides[i];

		if (side->channel == channel && pier_side_lives(side))
			return side;
	}
	return NULL;
}

static int check_twice(const struct pier_receiver_rail *given, uint32_t index)
{
	for (uint32_t i = 0; i < index; i++)
		if (given[i].channel == given[index].channel)
			return pier_fail(
				EINVAL, "receiver: rails %u and %u have the same channel",
				i, index);
	return 0;
}

/* The rails of a receiver, checked, before anything of it is changed. */
static int make_sides(const struct pier_receiver *receiver,
		      const struct pier_receiver_rail *given, uint32_t count,
		      uint64_t length, struct pier_receiver_side **ret_sides)
{
	struct pier_receiver_side *sides = calloc(count, sizeof(*sides));
	int error = 0;

	if (!sides)
		return pier_fail(ENOMEM, "no memory for %u rails", count);
	for (uint32_t i = 0; i < count && !error; i++) {
		error = check_twice(given, i);
		if (!error)
			error = pier_side_init(&sides[i], i, &given[i], length,
					       find_keeper(receiver, given[i].channel));
	}
	if (error) {
		free_sides(sides, count);
		return error;
	}
	*ret_sides = sides;
	return 0;
}

/* Take over rails that were made, with the receives that are posted; the old ones go. */
static int set_sides(struct pier_receiver *receiver, struct pier_receiver_side *sides,
		     uint32_t count)
{
	struct pollfd *fds = reallocarray(receiver->fds, count, sizeof(*fds));

	if (!fds)
		return pier_fail(ENOMEM, "no memory for %u rails", count);
	receiver->fds = fds;
	for (uint32_t i = 0; i < count; i++) {
		struct pier_receiver_side *keeper = find_keeper(receiver,
								sides[i].channel);

		if (keeper)
			pier_side_keep(&sides[i], keeper);
	}
	for (uint32_t i = 0; i < receiver->side_count; i++)
		pier_side_leave(&receiver->sides[i]);
	free_sides(receiver->sides, receiver->side_count);
	receiver->sides = sides;
	receiver->side_count = count;
	return 0;
}

static void start_times(struct pier_receiver *receiver)
{
	const struct pier_receiver_attr *attr = &receiver->attr;
	int stall_ms = attr->stall_ms;

	for (uint32_t i = 0; attr->stall_ms < 0 && i < receiver->side_count; i++) {
		int timeout_ms = receiver->sides[i].channel->attr.timeout_ms;

		if (timeout_ms > stall_ms)
			stall_ms = timeout_ms;
	}
	receiver->stall_ns = (int64_t)stall_ms * 1000000;
	receiver->alive_at = pier_now();
	receiver->deadline = attr->timeout_ms == PIER_TIMEOUT_DEFAULT
				     ? INT64_MAX
				     : pier_deadline(attr->timeout_ms);
}

/* From now on; receives that cannot be posted are how rails fail, which is told then. */
static void start(struct pier_receiver *receiver)
{
	receiver->ended = receiver->lost = false;
	receiver->stop = receiver->error = receiver->flush_error = 0;
	start_times(receiver);
	for (uint32_t i = 0; i < receiver->side_count; i++) {
		struct pier_receiver_side *side = &receiver->sides[i];

		side->unflushed = receiver->done > 0 &&
				  (side->direct || receiver->owes_flush);
		side->doubtful = side->unflushed;
		if (pier_side_post(side))
			pier_note_side_failure(receiver, i);
	}
}

static int make_blocks(uint64_t length, uint64_t **ret_blocks)
{
	uint64_t words = length / (64 * PIER_ANNOUNCE_BLOCK) + 1;
	uint64_t *blocks = calloc(words, sizeof(*blocks));

	if (!blocks)
		return pier_fail(ENOMEM, "no memory for the blocks of %" PRIu64 " bytes",
				 length);
	*ret_blocks = blocks;
	return 0;
}

/* With nothing that has come. Then the receiver is as before, or begins. */
static int restart(struct pier_receiver *receiver, const struct pier_receiver_rail *rails,
		   uint32_t count, uint64_t length)
{
	struct pier_receiver_side *sides = NULL;
	uint64_t *blocks = NULL;
	int error = make_sides(receiver, rails, count, length, &sides);

	if (!error)
		error = make_blocks(length, &blocks);
	if (!error)
		error = set_sides(receiver, sides, count);
	if (error) {
		free_sides(sides, sides ? count : 0);
		free(blocks);
		return error;
	}
	free(receiver->blocks);
	receiver->blocks = blocks;
	receiver->done = 0;
	receiver->attr.length = length;
	start(receiver);
	return 0;
}

static void describe_receiver(const struct pier_object *object, char *ret_text,
			      size_t size)
{
	const struct pier_receiver *receiver = (const struct pier_receiver *)object;

	snprintf(ret_text, size, "receiver of %" PRIu64 " bytes", receiver->attr.length);
}

static void free_receiver(struct pier_receiver *receiver)
{
	free_sides(receiver->sides, receiver->side_count);
	free(receiver->blocks);
	free(receiver->fds);
	free(receiver);
}

int pier_receiver_begin(const struct pier_receiver_attr *attr,
			struct pier_receiver **ret_receiver)
{
	PIER_ENTRY();
	struct pier_receiver_attr known;
	struct pier_receiver *receiver;
	int error = read_attr(attr, &known);

	if (error)
		return error;
	receiver = calloc(1, sizeof(*receiver));
	if (!receiver)
		return pier_fail(ENOMEM, "no memory for a receiver");
	receiver->attr = known;
	receiver->attr.rails = NULL;
	error = restart(receiver, known.rails, known.rail_count, known.length);
	if (error) {
		free_receiver(receiver);
		return error;
	}
	receiver->object.describe = describe_receiver;
	pier_object_track(&receiver->object, PIER_OBJECT_RECEIVER, NULL);
	*ret_receiver = receiver;
	return 0;
}

static int check_ended(const struct pier_receiver *receiver)
{
	int error = pier_check_process(&receiver->object);

	if (!error && !receiver->ended)
		error = pier_fail(EBUSY, "a receiver that has not ended goes on already: "
					 "drive it to its end, or cancel it");
	return error;
}

int pier_receiver_next(struct pier_receiver *receiver,
		       const struct pier_receiver_rail *rails, uint32_t count,
		       uint64_t length)
{
	int error = check_ended(receiver);

	if (!error && receiver->error && !receiver->flush_error)
		error = pier_fail(EBUSY, "the next receiver of one that ended with an "
					 "error: more of its chunks may come");
	if (!error)
		error = check_size(count, length);
	return error ? error : restart(receiver, rails, count, length);
}

/* Whether a channel that lives has gone on to bring bytes to the same place. */
static bool goes_on(const struct pier_receiver_side *side,
		    const struct pier_receiver_rail *rails, uint32_t count)
{
	bool found = side->error;

	for (uint32_t i = 0; i < count && !found; i++)
		found = rails[i].channel == side->channel && rails[i].mr == side->mr &&
			rails[i].offset == side->offset;
	return found;
}

static int check_resume(const struct pier_receiver *receiver,
			const struct pier_receiver_rail *rails, uint32_t count)
{
	int error = check_size(count, receiver->attr.length);

	for (uint32_t i = 0; i < receiver->side_count && !error; i++)
		if (!goes_on(&receiver->sides[i], rails, count))
			error = pier_fail(EINVAL,
					  "resuming a receiver: rail %u has not failed, "
					  "and is not as it was among the %u rails",
					  i, count);
	return error;
}

/* What came by channels that live, since the receiver ended, is not to be lost. */
static int prepare_resume(struct pier_receiver *receiver,
			  const struct pier_receiver_rail *rails, uint32_t count)
{
	int error = check_ended(receiver);

	if (!error && !receiver->error)
		error = pier_fail(EALREADY,
				  "resuming a receiver: all of its %" PRIu64
				  " bytes have come",
				  receiver->attr.length);
	if (!error)
		error = pier_catch_up(receiver);
	return error ? error : check_resume(receiver, rails, count);
}

int pier_receiver_resume(struct pier_receiver *receiver,
			 const struct pier_receiver_rail *rails, uint32_t count)
{
	struct pier_receiver_side *sides = NULL;
	int error = prepare_resume(receiver, rails, count);

	if (!error)
		error = make_sides(receiver, rails, count, receiver->attr.length, &sides);
	if (error)
		return error;
	error = set_sides(receiver, sides, count);
	if (error) {
		free_sides(sides, count);
		return error;
	}
	start(receiver);
	return 0;
}

int pier_receiver_cancel(struct pier_receiver *receiver)
{
	int error = pier_check_process(&receiver->object);

	if (error)
		return error;
	if (receiver->ended)
		return pier_fail(EALREADY, "cancelling a receiver that has ended");
	pier_stop_receiver(receiver, -ECANCELED, "it was cancelled");
	return 0;
}

int pier_receiver_destroy(struct pier_receiver *receiver)
{
	int error;

	if (!receiver)
		return 0;
	error = pier_check_process(&receiver->object);
	if (error)
		return error;
	for (uint32_t i = 0; i < receiver->side_count; i++)
		pier_side_leave(&receiver->sides[i]);
	pier_object_untrack(&receiver->object);
	free_receiver(receiver);
	return 0;
}

void pier_receiver_query(const struct pier_receiver *receiver,
			 struct pier_receiver_status *ret_status)
{
	*ret_status = (struct pier_receiver_status){
		.length = receiver->attr.length,
		.done = receiver->done,
		.rails = receiver->side_count,
		.ended = receiver->ended,
		.error = receiver->error,
	};
	for (uint32_t i = 0; i < receiver->side_count; i++) {
		ret_status->working_rails += !receiver->sides[i].error;
		ret_status->receives += receiver->sides[i].count;
	}
}

int pier_receiver_query_rail(const struct pier_receiver *receiver, uint32_t index,
			     struct pier_rail_status *ret_status)
{
	const struct pier_receiver_side *side;

	if (index >= receiver->side_count)
		return pier_fail(ERANGE, "rail %u of a receiver of %u", index,
				 receiver->side_count);
	side = &receiver->sides[index];
	*ret_status = (struct pier_rail_status){
		.channel = side->channel,
		.done = side->done,
		.in_flight = side->count,
		.error = side->error,
	};
	snprintf(ret_status->sentence, sizeof(ret_status->sentence), "%s",
		 side->error ? side->sentence : "");
	return 0;
}
