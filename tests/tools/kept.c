/* SPDX-License-Identifier: BSD-3-Clause */
#include "cp/list.h"

/* After failure.h, which has a function with the name of a macro. */
#include "../support/cmocka.h"

enum {
	SEGMENT = 64 << 10,
};

static void nothing_is_kept_without_segments(void **state)
{
	struct kept kept = { .size = 0 };

	(void)state;
	assert_int_equal(skip_kept(&kept, 5), 5);
	assert_int_equal(length_before_kept(&kept, 5, 1000), 1000);
	assert_int_equal(open_kept(&kept, 0), 0);
	assert_int_equal(kept.count, 0);
	assert_int_equal(skip_kept(&kept, 0), 0);
	close_kept(&kept);
}

static void the_last_segment_may_be_short(void **state)
{
	struct kept kept = { .bytes = 0 };

	(void)state;
	assert_int_equal(open_kept(&kept, 3 * SEGMENT + 5), 0);
	assert_int_equal(kept.count, 4);
	assert_int_equal(segment_length(&kept, 2), SEGMENT);
	assert_int_equal(segment_length(&kept, 3), 5);
	keep_segment(&kept, 3);
	assert_int_equal(kept.bytes, 5);
	assert_int_equal(skip_kept(&kept, 3 * SEGMENT), 3 * SEGMENT + 5);
	assert_int_equal(skip_kept(&kept, 3 * SEGMENT + 5), 3 * SEGMENT + 5);
	assert_int_equal(length_before_kept(&kept, 7, 3 * SEGMENT - 2), 3 * SEGMENT - 7);
	close_kept(&kept);
}

static void neighbours_are_skipped_together(void **state)
{
	struct kept kept = { .bytes = 0 };

	(void)state;
	assert_int_equal(open_kept(&kept, 10 * SEGMENT), 0);
	keep_segment(&kept, 0);
	for (uint64_t i = 4; i < 9; i++)
		keep_segment(&kept, i);
	assert_int_equal(kept.bytes, 6 * SEGMENT);
	assert_int_equal(skip_kept(&kept, 0), SEGMENT);
	assert_int_equal(skip_kept(&kept, SEGMENT), SEGMENT);
	assert_int_equal(skip_kept(&kept, 4 * SEGMENT), 9 * SEGMENT);
	assert_int_equal(length_before_kept(&kept, SEGMENT, 9 * SEGMENT), 3 * SEGMENT);
	assert_int_equal(length_before_kept(&kept, SEGMENT, 3 * SEGMENT), 3 * SEGMENT);
	assert_int_equal(length_before_kept(&kept, SEGMENT, 10), 10);
	assert_int_equal(length_before_kept(&kept, 4 * SEGMENT, 10), 0);
	close_kept(&kept);
}

static void their_number_is_limited(void **state)
{
	static const uint64_t sizes[] = { 64ull << 30, (64ull << 30) + 1, 64ull << 40,
					  INT64_MAX };

	(void)state;
	for (unsigned int i = 0; i < 4; i++) {
		struct kept kept = { .bytes = 0 };

		assert_int_equal(open_kept(&kept, sizes[i]), 0);
		assert_in_range(kept.count, 1, 1 << 20);
		keep_segment(&kept, kept.count - 1);
		assert_int_equal(skip_kept(&kept, (kept.count - 1) * kept.segment),
				 kept.count * kept.segment < sizes[i]
					 ? kept.count * kept.segment
					 : sizes[i]);
		assert_false(is_kept(&kept, kept.count));
		assert_int_equal(length_before_kept(&kept, 0, sizes[i]),
				 (kept.count - 1) * kept.segment);
		close_kept(&kept);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_is_kept_without_segments),
		cmocka_unit_test(the_last_segment_may_be_short),
		cmocka_unit_test(neighbours_are_skipped_together),
		cmocka_unit_test(their_number_is_limited),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
