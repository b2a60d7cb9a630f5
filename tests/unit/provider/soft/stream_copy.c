/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/cmocka.h"

#include <stdint.h>
#include <string.h>

#include "provider/soft/regions/vector.h"

enum {
	AREA = 1024
};

static void expect_copy(size_t to, size_t from, size_t length)
{
	uint8_t source[AREA], target[AREA];

	for (size_t i = 0; i < AREA; i++)
		source[i] = (uint8_t)(i * 7 + (i >> 8));
	memset(target, 0xee, AREA);
	pier_soft_stream_copy((char *)target + to, (const char *)source + from, length);
	for (size_t i = 0; i < AREA; i++) {
		if (i >= to && i < to + length)
			assert_int_equal(target[i], source[from + i - to]);
		else
			assert_int_equal(target[i], 0xee);
	}
}

static void copies_any_length_at_any_alignment(void **state)
{
	(void)state;
	for (size_t to = 0; to < 66; to++) {
		for (size_t length = 0; length < 200; length += 1 + length / 70)
			expect_copy(to, (to * 5) % 64, length);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(copies_any_length_at_any_alignment),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
