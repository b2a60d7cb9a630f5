/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_FAULTS_TRANSFERS_EXPECT_H
#define TESTS_FAULTS_TRANSFERS_EXPECT_H

#include "transfers_stage.h"

#include <pier/recovery.h>

#include "core/wire.h"

/* Checks the state of both ends after they have ended, and their memory. */

enum {
	STATE_HEADER = 24, /* of pier_transfer_pack(): see docs/wire.md */
	STATE_RANGE = 16,
};

static void expect_error(const char *end, int found, const char *sentence, int error,
			 int or_error, const char *part)
{
	if (error == 0)
		error = 1; /* all bytes have arrived */
	if (found != error && !(or_error && found == or_error))
		fail_msg("%s: %d, not %d: %s", end, found, error, sentence);
	if (found < 0 && !strstr(sentence, part))
		fail_msg("%s: \"%s\" is not in: %s", end, part, sentence);
}

/*
 * Exactly this number, or at most, if the transfer may have stalled before the failure.
 */
static void expect_chunks(uint64_t done, int chunks, bool stalls)
{
	if (chunks == ANY)
		return;
	if (done > (uint64_t)chunks * CHUNK ||
	    (!stalls && done < (uint64_t)chunks * CHUNK))
		fail_msg("%zu bytes, not %d", (size_t)done, chunks * CHUNK);
}

static void expect_here(const struct transfer_outcome *outcome)
{
	struct pier_channel *channel = fixture.here.channels[0];
	struct pier_transfer_status now = status();

	expect_error("the transfer", stage.error, stage.sentence, outcome->error,
		     outcome->or_error, outcome->sentence);
	expect_result(pier_transfer_progress(fixture.transfer), stage.error);
	assert_true(now.ended);
	assert_int_equal(now.error, stage.error < 0 ? stage.error : 0);
	assert_int_equal(now.in_flight, 0);
	assert_int_equal(pier_channel_outstanding(channel), 0);
	assert_int_equal(rail_status(0).in_flight, 0);
	assert_int_equal(!rail_status(0).error, !*rail_status(0).sentence);
	if (stage.error < 0)
		expect_chunks(now.done, outcome->chunks, by(STALLS_HERE | OVER_IN_TIME));
	else
		assert_int_equal(now.done, LENGTH);
}

static void expect_there(const struct transfer_outcome *outcome)
{
	struct pier_channel *channel = fixture.there.channels[0];
	struct pier_rail_status rail = receiver_rail();

	expect_error("the receiver", stage.receiver_error, stage.receiver_sentence,
		     outcome->receiver, outcome->or_receiver, outcome->receiver_sentence);
	expect_result(pier_receiver_progress(fixture.receiver), stage.receiver_error);
	assert_true(landed().ended);
	assert_int_equal(landed().error,
			 stage.receiver_error < 0 ? stage.receiver_error : 0);
	/*
	 * A failed rail has no receives left. Those of other rails have completed or are
	 * posted.
	 */
	assert_in_range(rail.in_flight, pier_channel_outstanding(channel),
			rail.error ? 0 : MANY_RECEIVES);
	assert_int_equal(landed().receives, rail.in_flight);
	assert_int_equal(!rail.error, !*rail.sentence);
	if (rail.error) {
		assert_int_equal(rail.in_flight, 0);
		assert_true(pier_channel_error(channel, NULL, 0) < 0);
	}
	if (stage.receiver_error < 0)
		expect_chunks(landed().done, outcome->landed,
			      by(STALLS_THERE | OVER_IN_TIME_THERE));
	else
		assert_int_equal(landed().done, LENGTH);
}

static uint8_t *read_memory(const struct side *side)
{
	uint8_t *bytes = malloc(AREA);
	int lost_from = fixture.gpu->lost_at_from;

	fixture.gpu->lost_at_from = 0;
	expect_ok(pier_buffer_copy_from(side->buffer, 0, bytes, AREA));
	fixture.gpu->lost_at_from = lost_from;
	return bytes;
}

/* The contents of [from, to): the new bytes, the old ones, or a mixture. */
static void expect_bytes(const uint8_t *now, const struct side *source,
			 const struct side *target, uint64_t from, uint64_t to,
			 bool may_be_old, bool may_be_new)
{
	for (uint64_t i = GUARD + from; i < GUARD + to; i++)
		if (!(may_be_old && now[i] == target->image[i]) &&
		    !(may_be_new && now[i] == source->image[i]))
			fail_msg("byte %zu of %d is not what it must be",
				 (size_t)(i - GUARD), LENGTH);
}

static void expect_guards(const uint8_t *now, const struct side *target)
{
	assert_memory_equal(now, target->image, GUARD);
	assert_memory_equal(now + GUARD + LENGTH, target->image + GUARD + LENGTH, GUARD);
}

/*
 * Counted bytes have arrived. Uncounted ones may have, except where the transfer's own
 * copies would bring them.
 */
static void expect_counted(const struct side *source, const struct side *target)
{
	uint8_t *now = read_memory(target), *wire;
	int size = pier_transfer_pack(fixture.transfer, NULL, 0);
	bool exact = is(READS);
	uint64_t at = 0, offset, length;

	assert_true(size >= STATE_HEADER);
	wire = malloc((size_t)size);
	expect_result(pier_transfer_pack(fixture.transfer, wire, (size_t)size), size);
	for (int i = STATE_HEADER; i < size; i += STATE_RANGE) {
		offset = pier_get_le64(wire + i);
		length = pier_get_le64(wire + i + 8);
		expect_bytes(now, source, target, at, offset, false, true);
		expect_bytes(now, source, target, offset, offset + length, true, !exact);
		at = offset + length;
	}
	expect_bytes(now, source, target, at, LENGTH, false, true);
	expect_guards(now, target);
	free(wire);
	free(now);
}

/* Of one rail chunks land in their order. What is bounced is as long as it was copied. */
static void expect_landed(const struct side *source, const struct side *target)
{
	uint8_t *now = read_memory(target);
	uint64_t done = landed().done;

	expect_bytes(now, source, target, 0, done, false, true);
	expect_bytes(now, source, target, done, LENGTH, true, !is(BOUNCED_THERE));
	expect_guards(now, target);
	free(now);
}

static void expect_all_memory(void)
{
	const struct side *source = is(READS) ? &fixture.there : &fixture.here;
	const struct side *target = is(READS) ? &fixture.here : &fixture.there;

	if (target->buffer && is(LANDS))
		expect_landed(source, target);
	else if (target->buffer)
		expect_counted(source, target);
	if (source->buffer) {
		uint8_t *now = read_memory(source);

		assert_memory_equal(now, source->image, AREA);
		free(now);
	}
}

/* Both ends have all bytes, and no other byte has changed. */
static void expect_all(void)
{
	assert_int_equal(status().done, LENGTH);
	if (is(LANDS))
		assert_int_equal(landed().done, LENGTH);
	expect_moved(LENGTH, is(READS));
}

#endif
