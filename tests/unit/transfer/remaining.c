/* SPDX-License-Identifier: BSD-3-Clause */
/* The ranges of a transfer that are still to be moved, and their saved form. */
#include "tests/support/cmocka.h"
#include "tests/support/expect.h"
#include "tests/support/random.h"

#include <errno.h>
#include <string.h>

#include "transfer/remaining.h"
#include "core/wire.h"

static void expect_ranges(const struct pier_remaining *remaining,
			  const struct pier_range *ranges, uint32_t count)
{
	assert_int_equal(remaining->count, count);
	for (uint32_t i = 0; i < count; i++) {
		assert_int_equal(remaining->ranges[i].offset, ranges[i].offset);
		assert_int_equal(remaining->ranges[i].length, ranges[i].length);
	}
}

static void hands_out_and_returns_ranges(void **state)
{
	struct pier_remaining remaining;

	(void)state;
	expect_ok(pier_remaining_init(&remaining, 100, 4));
	pier_remaining_take(&remaining, 10);
	pier_remaining_take(&remaining, 10);
	pier_remaining_take(&remaining, 10);
	expect_ranges(&remaining, (struct pier_range[]){ { 30, 70 } }, 1);
	pier_remaining_give_back(&remaining, (struct pier_range){ 0, 10 });
	expect_ranges(&remaining, (struct pier_range[]){ { 0, 10 }, { 30, 70 } }, 2);
	pier_remaining_give_back(&remaining, (struct pier_range){ 20, 10 });
	expect_ranges(&remaining, (struct pier_range[]){ { 0, 10 }, { 20, 80 } }, 2);
	pier_remaining_give_back(&remaining, (struct pier_range){ 10, 10 });
	expect_ranges(&remaining, (struct pier_range[]){ { 0, 100 } }, 1);
	pier_remaining_take(&remaining, 100);
	assert_true(pier_remaining_empty(&remaining));
	pier_remaining_give_back(&remaining, (struct pier_range){ 50, 1 });
	pier_remaining_give_back(&remaining, (struct pier_range){ 60, 1 });
	pier_remaining_give_back(&remaining, (struct pier_range){ 51, 1 });
	expect_ranges(&remaining, (struct pier_range[]){ { 50, 2 }, { 60, 1 } }, 2);
	assert_int_equal(pier_remaining_length(&remaining), 3);
	expect_ok(pier_remaining_grow(&remaining, 100));
	assert_in_range(remaining.room, 102, 200);
	expect_ranges(&remaining, (struct pier_range[]){ { 50, 2 }, { 60, 1 } }, 2);
	pier_remaining_free(&remaining);
	expect_ok(pier_remaining_init(&remaining, 0, 0));
	assert_true(pier_remaining_empty(&remaining));
	pier_remaining_free(&remaining);
}

/* Beside a model: one byte of state for each byte of the transfer. */
enum {
	BYTES = 300,
	SLOTS = 12,
};

enum place {
	REMAINS,
	FLIES,
	DONE,
};

static void expect_model(const struct pier_remaining *remaining, const enum place *model)
{
	uint32_t at = 0;

	for (uint32_t i = 0; i < remaining->count; i++) {
		const struct pier_range *range = &remaining->ranges[i];

		for (; at < range->offset; at++)
			assert_int_not_equal(model[at], REMAINS);
		/* Two ranges never touch each other. */
		assert_true(i == 0 || model[at - 1] != REMAINS);
		for (; at < range->offset + range->length; at++)
			assert_int_equal(model[at], REMAINS);
	}
	for (; at < BYTES; at++)
		assert_int_not_equal(model[at], REMAINS);
}

static void mark(enum place *model, struct pier_range range, enum place place)
{
	for (uint64_t i = 0; i < range.length; i++) {
		assert_int_not_equal(model[range.offset + i], place);
		model[range.offset + i] = place;
	}
}

static void expect_packed(const struct pier_remaining *remaining)
{
	uint8_t wire[24 + 16 * (SLOTS + 2)];
	struct pier_remaining read;
	int size = pier_remaining_pack(remaining, BYTES, wire, sizeof(wire));

	assert_true(size > 0);
	assert_int_equal(pier_remaining_pack(remaining, BYTES, NULL, 0), size);
	expect_result(pier_remaining_pack(remaining, BYTES, wire, (size_t)size - 1),
		      -ENOSPC);
	expect_ok(pier_remaining_unpack(&read, BYTES, 3, wire, (size_t)size));
	expect_ranges(&read, remaining->ranges, remaining->count);
	assert_true(read.room >= read.count + 3);
	pier_remaining_free(&read);
}

static void agrees_with_a_model(void **state)
{
	struct test_random random = test_random_start();

	(void)state;
	for (int round = 0; round < 300; round++) {
		enum place model[BYTES] = { REMAINS };
		struct pier_range flying[SLOTS];
		struct pier_remaining remaining;
		uint32_t flies = 0, steps = 0;

		/* No chunk splits a range that was returned, so this many are enough. */
		expect_ok(pier_remaining_init(&remaining, BYTES, SLOTS + 1));
		while (flies > 0 || !pier_remaining_empty(&remaining)) {
			bool post = flies < SLOTS && !pier_remaining_empty(&remaining) &&
				    test_random_below(&random, 3);

			if (post) {
				struct pier_range range = pier_remaining_first(
					&remaining);

				if (range.length > 7)
					range.length = 7;
				pier_remaining_take(&remaining, range.length);
				mark(model, range, FLIES);
				flying[flies++] = range;
			} else if (flies > 0) {
				uint32_t which = (uint32_t)test_random_below(&random,
									     flies);
				struct pier_range range = flying[which];
				bool failed = test_random_below(&random, 3) == 0;

				flying[which] = flying[--flies];
				mark(model, range, failed ? REMAINS : DONE);
				if (failed)
					pier_remaining_give_back(&remaining, range);
			}
			assert_true(remaining.count <= SLOTS + 1);
			expect_model(&remaining, model);
			if (steps++ % 8 == 0)
				expect_packed(&remaining);
		}
		pier_remaining_free(&remaining);
	}
}

static size_t make_state(uint8_t *wire)
{
	struct pier_range ranges[] = { { 0, 10 }, { 20, 10 }, { 90, 10 } };
	struct pier_remaining remaining = { ranges, 3, 3 };
	int size = pier_remaining_pack(&remaining, 100, wire, 72);

	assert_int_equal(size, 72);
	return 72;
}

/* Byte by byte: docs/wire.md. */
static void has_the_documented_form(void **state)
{
	static const uint8_t expected[40] = {
		'P', 'r', 'T', 'S', 1, 0, 0, 0, 3, 0, 0, 0, 0,	0, 0, 0, 100, 0, 0, 0,
		0,   0,	  0,   0,   0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0,   0, 0, 0,
	};
	uint8_t wire[72];

	(void)state;
	make_state(wire);
	assert_memory_equal(wire, expected, sizeof(expected));
}

static void rejects_hostile_states(void **state)
{
	static const struct {
		size_t at;
		uint8_t value;
		int error;
	} changes[] = {
		{ 0, 'p', -EBADMSG },
		{ 4, 2, -EPROTONOSUPPORT },
		{ 6, 1, -EBADMSG },
		{ 8, 2, -EMSGSIZE },
		{ 8, 4, -EMSGSIZE },
		{ 11, 0x80, -EMSGSIZE },
		{ 12, 1, -EBADMSG },
		{ 16, 99, -EBADMSG },
		{ 32, 0, -EBADMSG /* empty */ },
		{ 32, 20, -EBADMSG /* touches the one before */ },
		{ 32, 21, -EBADMSG /* overlaps */ },
		{ 40, 3, -EBADMSG /* out of order */ },
		{ 64, 11, -EBADMSG /* ends beyond the transfer */ },
		{ 71, 0xff, -EBADMSG /* wraps around */ },
	};
	struct pier_remaining remaining;
	uint8_t wire[73] = { 0 };
	size_t size = make_state(wire);

	(void)state;
	for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
		uint8_t was = wire[changes[i].at];

		wire[changes[i].at] = changes[i].value;
		expect_result(pier_remaining_unpack(&remaining, 100, 1, wire, size),
			      changes[i].error);
		wire[changes[i].at] = was;
	}
	for (size_t shorter = 0; shorter < size; shorter++)
		expect_result(pier_remaining_unpack(&remaining, 100, 1, wire, shorter),
			      -EMSGSIZE);
	expect_result(pier_remaining_unpack(&remaining, 100, 1, wire, size + 1),
		      -EMSGSIZE);
	expect_ok(pier_remaining_unpack(&remaining, 100, 1, wire, size));
	pier_remaining_free(&remaining);
}

/* No range can follow the last byte of the 64-bit space. */
static void rejects_ranges_behind_the_last_byte(void **state)
{
	struct pier_range ranges[] = { { 5, UINT64_MAX - 5 }, { 0, 1 } };
	struct pier_remaining remaining = { ranges, 2, 2 }, read;
	uint8_t wire[56];

	(void)state;
	assert_int_equal(pier_remaining_pack(&remaining, UINT64_MAX, wire, 56), 56);
	expect_result(pier_remaining_unpack(&read, UINT64_MAX, 1, wire, 56), -EBADMSG);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hands_out_and_returns_ranges),
		cmocka_unit_test(agrees_with_a_model),
		cmocka_unit_test(has_the_documented_form),
		cmocka_unit_test(rejects_hostile_states),
		cmocka_unit_test(rejects_ranges_behind_the_last_byte),
	};

	return cmocka_run_group_tests_name("transfer_remaining", tests, NULL, NULL);
}
