/* SPDX-License-Identifier: BSD-3-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "channel/slot.h"

enum {
	SENDS = 3,
	RECEIVES = 2,
	SEND_SGE = 3,
	RECV_SGE = 2,
};

static const struct pier_slot_limits limits = { SENDS, RECEIVES, SEND_SGE, RECV_SGE };

static struct pier_slots table(uint64_t generation)
{
	struct pier_slots slots;

	assert_int_equal(pier_init_slots(&slots, &limits, generation), 0);
	return slots;
}

static void keeps_the_queues_apart(void **state)
{
	struct pier_slots slots = table(7);
	struct pier_slot *slot = NULL;

	(void)state;
	for (int i = 0; i < SENDS; i++) {
		slot = pier_take_slot(&slots, false);
		assert_non_null(slot);
	}
	assert_null(pier_take_slot(&slots, false));
	for (int i = 0; i < RECEIVES; i++)
		assert_non_null(pier_take_slot(&slots, true));
	assert_null(pier_take_slot(&slots, true));
	pier_give_slot(&slots, slot);
	assert_null(pier_take_slot(&slots, true));
	assert_ptr_equal(pier_take_slot(&slots, false), slot);
	pier_free_slots(&slots);
}

static void forgets_used_up_handles(void **state)
{
	struct pier_slots slots = table(UINT64_MAX); /* generations wrap */
	const struct pier_result result = { .byte_length = 5 };
	uint64_t before = UINT64_MAX;

	(void)state;
	for (int round = 0; round < 1000; round++) {
		struct pier_slot *slot = pier_take_slot(&slots, false);
		uint64_t id = slot->id;

		assert_int_not_equal(id, before);
		assert_null(pier_find_slot(&slots, id)); /* not posted yet */
		pier_slot_posted(&slots, slot, true, NULL, 0);
		assert_int_equal(slots.outstanding, 1);
		assert_ptr_equal(pier_find_slot(&slots, id), slot);
		assert_null(pier_find_slot(&slots, before));
		pier_slot_done(&slots, slot, &result);
		assert_int_equal(slots.outstanding, 0);
		assert_int_equal(pier_find_slot(&slots, id)->result.byte_length, 5);
		pier_give_slot(&slots, slot);
		assert_null(pier_find_slot(&slots, id));
		before = id;
	}
	pier_free_slots(&slots);
}

static void frees_what_nobody_watches(void **state)
{
	struct pier_slots slots = table(0);
	const struct pier_result result = { 0 };

	(void)state;
	for (int i = 0; i < 2 * RECEIVES; i++) {
		struct pier_slot *slot = pier_take_slot(&slots, true);

		assert_non_null(slot);
		pier_slot_posted(&slots, slot, false, NULL, 0);
		pier_slot_done(&slots, slot, &result);
	}
	assert_int_equal(slots.outstanding, 0);
	pier_free_slots(&slots);
}

static void finds_only_its_own(void **state)
{
	struct pier_slots slots = table(100), others = table(5000);
	struct pier_slot *slot = pier_take_slot(&others, false);

	(void)state;
	pier_slot_posted(&others, slot, true, NULL, 0);
	assert_null(pier_find_slot(&slots, slot->id));
	assert_null(pier_find_slot(&slots, 0));
	assert_null(pier_find_slot(&slots, UINT64_MAX));
	assert_null(pier_find_slot(&slots, SENDS + RECEIVES));
	pier_free_slots(&slots);
	pier_free_slots(&others);
}

static void counts_free_ones(void **state)
{
	struct pier_slots slots = table(0);
	struct pier_slot *slot;

	(void)state;
	assert_true(pier_has_slots(&slots, false, SENDS));
	assert_false(pier_has_slots(&slots, false, SENDS + 1));
	assert_true(pier_has_slots(&slots, true, RECEIVES));
	assert_false(pier_has_slots(&slots, true, RECEIVES + 1));
	slot = pier_take_slot(&slots, false);
	for (int i = 1; i < SENDS; i++)
		assert_non_null(pier_take_slot(&slots, false));
	assert_false(pier_has_slots(&slots, false, 1));
	assert_true(pier_has_slots(&slots, false, 0));
	assert_true(pier_has_slots(&slots, true, RECEIVES));
	pier_give_slot(&slots, slot);
	assert_true(pier_has_slots(&slots, false, 1));
	assert_false(pier_has_slots(&slots, false, 2));
	pier_free_slots(&slots);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(keeps_the_queues_apart),
		cmocka_unit_test(forgets_used_up_handles),
		cmocka_unit_test(frees_what_nobody_watches),
		cmocka_unit_test(finds_only_its_own),
		cmocka_unit_test(counts_free_ones),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
