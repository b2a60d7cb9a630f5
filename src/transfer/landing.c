/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "announce.h"
#include "channel/channel.h"
#include "landing.h"
#include "util/caller.h"
#include "util/deadline.h"
#include "util/error.h"
#include "util/extensible.h"

static int check_time(const char *name, int ms)
{
	if (ms > 0 || ms == PIER_TIMEOUT_DEFAULT)
		return 0;
	return pier_fail(EINVAL, "landing: %s %d is neither more than 0 nor the default",
			 name, ms);
}

static int check_size(uint32_t rail_count, uint64_t length)
{
	if (rail_count < 1 || rail_count > PIER_RAILS_MAX)
		return pier_fail(EINVAL, "landing: %u rails; it has 1 to %d", rail_count,
				 PIER_RAILS_MAX);
	if (length > PIER_ANNOUNCE_MAX)
		return pier_fail(EINVAL,
				 "landing: %" PRIu64 " bytes are more than 16 TiB",
				 length);
	return 0;
}

static int read_attr(const struct pier_landing_attr *given,
		     struct pier_landing_attr *ret_attr)
{
	static const struct pier_landing_attr defaults = PIER_LANDING_ATTR_INIT;
	int error;

	if (!given)
		return pier_fail(EINVAL, "landing: the attributes are NULL");
	*ret_attr = defaults;
	/* Its first version had all that is in there. */
	error = pier_read_extensible("landing", "PIER_LANDING_ATTR_INIT", given,
				     sizeof(*given), sizeof(*given), ret_attr);
	if (!error && ret_attr->flags)
		error = pier_fail(EINVAL, "landing: flags %#x are not known",
				  (unsigned int)ret_attr->flags);
	if (!error)
		error = check_time("stall_ms", ret_attr->stall_ms);
	if (!error)
		error = check_time("timeout_ms", ret_attr->timeout_ms);
	return error ? error : check_size(ret_attr->rail_count, ret_attr->length);
}

static void free_sides(struct pier_landing_side *sides, uint32_t count)
{
	for (uint32_t i = 0; sides && i < count; i++)
		pier_side_free(&sides[i]);
	free(sides);
}

/* The side of before whose receives can be used for a channel, or NULL. */
static struct pier_landing_side *find_keeper(const struct pier_landing *landing,
					     const struct pier_channel *channel)
{
	for (uint32_t i = 0; i < landing->side_count; i++) {
		struct pier_landing_side *side = &landing->sides[i];

		if (side->channel == channel && pier_side_lives(side))
			return side;
	}
	return NULL;
}

static int check_twice(const struct pier_landing_rail *given, uint32_t index)
{
	for (uint32_t i = 0; i < index; i++)
		if (given[i].channel == given[index].channel)
			return pier_fail(EINVAL,
					 "landing: rails %u and %u have the same channel",
					 i, index);
	return 0;
}

/* The rails of a landing, checked, before anything of it is changed. */
static int make_sides(const struct pier_landing *landing,
		      const struct pier_landing_rail *given, uint32_t count,
		      uint64_t length, struct pier_landing_side **ret_sides)
{
	struct pier_landing_side *sides = calloc(count, sizeof(*sides));
	int error = 0;

	if (!sides)
		return pier_fail(ENOMEM, "no memory for %u rails", count);
	for (uint32_t i = 0; i < count && !error; i++) {
		error = check_twice(given, i);
		if (!error)
			error = pier_side_init(&sides[i], i, &given[i], length,
					       find_keeper(landing, given[i].channel));
	}
	if (error) {
		free_sides(sides, count);
		return error;
	}
	*ret_sides = sides;
	return 0;
}

/* Take over rails that were made, with the receives that are posted; the old ones go. */
static int set_sides(struct pier_landing *landing, struct pier_landing_side *sides,
		     uint32_t count)
{
	struct pollfd *fds = reallocarray(landing->fds, count, sizeof(*fds));

	if (!fds)
		return pier_fail(ENOMEM, "no memory for %u rails", count);
	landing->fds = fds;
	for (uint32_t i = 0; i < count; i++) {
		struct pier_landing_side *keeper = find_keeper(landing, sides[i].channel);

		if (keeper)
			pier_side_keep(&sides[i], keeper);
	}
	for (uint32_t i = 0; i < landing->side_count; i++)
		pier_side_leave(&landing->sides[i]);
	free_sides(landing->sides, landing->side_count);
	landing->sides = sides;
	landing->side_count = count;
	return 0;
}

static void start_times(struct pier_landing *landing)
{
	const struct pier_landing_attr *attr = &landing->attr;
	int stall_ms = attr->stall_ms;

	for (uint32_t i = 0; attr->stall_ms < 0 && i < landing->side_count; i++) {
		int timeout_ms = landing->sides[i].channel->attr.timeout_ms;

		if (timeout_ms > stall_ms)
			stall_ms = timeout_ms;
	}
	landing->stall_ns = (int64_t)stall_ms * 1000000;
	landing->alive_at = pier_now();
	landing->deadline = attr->timeout_ms == PIER_TIMEOUT_DEFAULT
				    ? INT64_MAX
				    : pier_deadline(attr->timeout_ms);
}

/* From now on; receives that cannot be posted are how rails fail, which is told then. */
static void start(struct pier_landing *landing)
{
	landing->ended = landing->lost = false;
	landing->stop = landing->error = landing->flush_error = 0;
	start_times(landing);
	for (uint32_t i = 0; i < landing->side_count; i++) {
		struct pier_landing_side *side = &landing->sides[i];

		side->unflushed = landing->done > 0 &&
				  (side->direct || landing->owes_flush);
		side->doubtful = side->unflushed;
		if (pier_side_post(side))
			pier_note_side_failure(landing, i);
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

/* With nothing that has come. Then the landing is as before, or begins. */
static int restart(struct pier_landing *landing, const struct pier_landing_rail *rails,
		   uint32_t count, uint64_t length)
{
	struct pier_landing_side *sides = NULL;
	uint64_t *blocks = NULL;
	int error = make_sides(landing, rails, count, length, &sides);

	if (!error)
		error = make_blocks(length, &blocks);
	if (!error)
		error = set_sides(landing, sides, count);
	if (error) {
		free_sides(sides, sides ? count : 0);
		free(blocks);
		return error;
	}
	free(landing->blocks);
	landing->blocks = blocks;
	landing->done = 0;
	landing->attr.length = length;
	start(landing);
	return 0;
}

static void describe_landing(const struct pier_object *object, char *ret_text,
			     size_t size)
{
	const struct pier_landing *landing = (const struct pier_landing *)object;

	snprintf(ret_text, size, "landing of %" PRIu64 " bytes", landing->attr.length);
}

static void free_landing(struct pier_landing *landing)
{
	free_sides(landing->sides, landing->side_count);
	free(landing->blocks);
	free(landing->fds);
	free(landing);
}

int pier_begin_landing(const struct pier_landing_attr *attr,
		       struct pier_landing **ret_landing)
{
	PIER_ENTRY();
	struct pier_landing_attr known;
	struct pier_landing *landing;
	int error = read_attr(attr, &known);

	if (error)
		return error;
	landing = calloc(1, sizeof(*landing));
	if (!landing)
		return pier_fail(ENOMEM, "no memory for a landing");
	landing->attr = known;
	landing->attr.rails = NULL;
	error = restart(landing, known.rails, known.rail_count, known.length);
	if (error) {
		free_landing(landing);
		return error;
	}
	landing->object.describe = describe_landing;
	pier_object_track(&landing->object, PIER_OBJECT_LANDING, NULL);
	*ret_landing = landing;
	return 0;
}

static int check_ended(const struct pier_landing *landing)
{
	int error = pier_check_process(&landing->object);

	if (!error && !landing->ended)
		error = pier_fail(EBUSY, "a landing that has not ended goes on already: "
					 "drive it to its end, or cancel it");
	return error;
}

int pier_next_landing(struct pier_landing *landing, const struct pier_landing_rail *rails,
		      uint32_t count, uint64_t length)
{
	int error = check_ended(landing);

	if (!error && landing->error && !landing->flush_error)
		error = pier_fail(EBUSY, "the next landing of one that ended with an "
					 "error: more of its chunks may come");
	if (!error)
		error = check_size(count, length);
	return error ? error : restart(landing, rails, count, length);
}

/* Whether a channel that lives has gone on to bring bytes to the same place. */
static bool goes_on(const struct pier_landing_side *side,
		    const struct pier_landing_rail *rails, uint32_t count)
{
	bool found = side->error;

	for (uint32_t i = 0; i < count && !found; i++)
		found = rails[i].channel == side->channel && rails[i].mr == side->mr &&
			rails[i].offset == side->offset;
	return found;
}

static int check_resume(const struct pier_landing *landing,
			const struct pier_landing_rail *rails, uint32_t count)
{
	int error = check_size(count, landing->attr.length);

	for (uint32_t i = 0; i < landing->side_count && !error; i++)
		if (!goes_on(&landing->sides[i], rails, count))
			error = pier_fail(EINVAL,
					  "resuming a landing: rail %u has not failed, "
					  "and is not as it was among the %u rails",
					  i, count);
	return error;
}

/* What came by channels that live, since the landing ended, is not to be lost. */
static int prepare_resume(struct pier_landing *landing,
			  const struct pier_landing_rail *rails, uint32_t count)
{
	int error = check_ended(landing);

	if (!error && !landing->error)
		error = pier_fail(EALREADY,
				  "resuming a landing: all of its %" PRIu64
				  " bytes have come",
				  landing->attr.length);
	if (!error)
		error = pier_catch_up(landing);
	return error ? error : check_resume(landing, rails, count);
}

int pier_resume_landing(struct pier_landing *landing,
			const struct pier_landing_rail *rails, uint32_t count)
{
	struct pier_landing_side *sides = NULL;
	int error = prepare_resume(landing, rails, count);

	if (!error)
		error = make_sides(landing, rails, count, landing->attr.length, &sides);
	if (error)
		return error;
	error = set_sides(landing, sides, count);
	if (error) {
		free_sides(sides, count);
		return error;
	}
	start(landing);
	return 0;
}

int pier_cancel_landing(struct pier_landing *landing)
{
	int error = pier_check_process(&landing->object);

	if (error)
		return error;
	if (landing->ended)
		return pier_fail(EALREADY, "cancelling a landing that has ended");
	pier_stop_landing(landing, -ECANCELED, "it was cancelled");
	return 0;
}

int pier_destroy_landing(struct pier_landing *landing)
{
	int error;

	if (!landing)
		return 0;
	error = pier_check_process(&landing->object);
	if (error)
		return error;
	for (uint32_t i = 0; i < landing->side_count; i++)
		pier_side_leave(&landing->sides[i]);
	pier_object_untrack(&landing->object);
	free_landing(landing);
	return 0;
}

void pier_query_landing(const struct pier_landing *landing,
			struct pier_landing_status *ret_status)
{
	*ret_status = (struct pier_landing_status){
		.length = landing->attr.length,
		.done = landing->done,
		.rails = landing->side_count,
		.ended = landing->ended,
		.error = landing->error,
	};
	for (uint32_t i = 0; i < landing->side_count; i++) {
		ret_status->working_rails += !landing->sides[i].error;
		ret_status->receives += landing->sides[i].count;
	}
}

int pier_query_landing_rail(const struct pier_landing *landing, uint32_t index,
			    struct pier_rail_status *ret_status)
{
	const struct pier_landing_side *side;

	if (index >= landing->side_count)
		return pier_fail(ERANGE, "rail %u of a landing of %u", index,
				 landing->side_count);
	side = &landing->sides[index];
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
