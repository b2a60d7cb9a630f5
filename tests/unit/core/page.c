/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/cmocka.h"
#include "tests/support/random.h"

#include "core/page.h"

/* The documented rule, for a range whose pages end below 2^64. */
static void check_rule(uint64_t address, uint64_t length, uint64_t page)
{
	struct pier_page_range range;

	assert_true(pier_page_range(address, length, page, &range));
	assert_int_equal(range.base % page, 0);
	assert_int_equal(range.length % page, 0);
	/* The whole range, and no page more. */
	assert_true(range.base <= address && address - range.base < page);
	assert_true(range.base + range.length >= address + length);
	assert_true(range.base + range.length - (address + length) < page);
	assert_int_equal(range.offset, address - range.base);
	assert_int_equal(range.iova, address);
	assert_true(pier_page_agree(range.offset, range.iova, page));
}

/* The function does not depend on 4096: a small page can be tested exhaustively. */
static void covers_every_small_range(void **state)
{
	(void)state;
	for (uint64_t page = 1; page <= 16; page *= 2)
		for (uint64_t address = 0; address < 64; address++)
			for (uint64_t length = 1; length < 64; length++)
				check_rule(address, length, page);
}

static const uint64_t pages[] = { 4 << 10, 16 << 10, 64 << 10 };

static void covers_edges_of_pages(void **state)
{
	(void)state;
	for (size_t i = 0; i < 3; i++) {
		uint64_t page = pages[i];
		uint64_t steps[] = {
			0,    1,	2,	  page / 2,	page - 1,
			page, page + 1, 2 * page, 3 * page - 1, 3 * page,
		};

		for (size_t a = 0; a < 10; a++)
			for (size_t b = 1; b < 10; b++)
				check_rule((1ull << 40) + steps[a], steps[b], page);
	}
}

static void gives_known_answers(void **state)
{
	struct pier_page_range range;

	(void)state;
	assert_true(pier_page_range(0x12345, 0x1000, 0x1000, &range));
	assert_int_equal(range.base, 0x12000);
	assert_int_equal(range.length, 0x2000);
	assert_int_equal(range.offset, 0x345);
	assert_int_equal(range.iova, 0x12345);
	assert_true(pier_page_range(0x12345, 0x1000, 0x10000, &range));
	assert_int_equal(range.base, 0x10000);
	assert_int_equal(range.length, 0x10000);
	assert_int_equal(range.offset, 0x2345);
}

static void refuses_invalid_ranges(void **state)
{
	struct pier_page_range range = { 1, 2, 3, 4 };

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		uint64_t page = pages[i], top = 0 - page; /* the last page */

		assert_false(pier_page_range(0x1000, 0, page, &range));
		assert_false(pier_page_range(top, page, page, &range));
		assert_false(pier_page_range(top, 1, page, &range));
		assert_false(pier_page_range(top - 1, 2, page, &range));
		assert_false(pier_page_range(UINT64_MAX, 1, page, &range));
		assert_false(pier_page_range(1, UINT64_MAX, page, &range));
		assert_false(pier_page_range(0, UINT64_MAX, page, &range));
		check_rule(top - 1, 1, page);
		check_rule(0, top, page);
	}
	assert_int_equal(range.base, 1);
	assert_int_equal(range.iova, 4);
}

static void compares_offsets_within_a_page(void **state)
{
	(void)state;
	assert_true(pier_page_agree(0, 0, 4096));
	assert_true(pier_page_agree(0x345, 0xabc345, 4096));
	assert_false(pier_page_agree(0x345, 0xabc346, 4096));
	assert_false(pier_page_agree(0x1345, 0x2345, 16384));
}

static void covers_random_ranges(void **state)
{
	struct test_random random = test_random_start();

	(void)state;
	for (int i = 0; i < 100000; i++) {
		uint64_t page = pages[test_random_below(&random, 3)];
		/* Numbers of every magnitude. */
		uint64_t address = test_random_next(&random) >>
				   test_random_below(&random, 64);
		uint64_t length = test_random_next(&random) >>
				  test_random_below(&random, 64);
		uint64_t end = address + length;
		struct pier_page_range range;

		if (length == 0 || end < address || end > 0 - page)
			assert_false(pier_page_range(address, length, page, &range));
		else
			check_rule(address, length, page);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(covers_every_small_range),
		cmocka_unit_test(covers_edges_of_pages),
		cmocka_unit_test(gives_known_answers),
		cmocka_unit_test(refuses_invalid_ranges),
		cmocka_unit_test(compares_offsets_within_a_page),
		cmocka_unit_test(covers_random_ranges),
	};

	return cmocka_run_group_tests_name("page", tests, NULL, NULL);
}
