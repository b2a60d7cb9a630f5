/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Gather and scatter elements. They are values, so no device is needed. Built with and
 * without NDEBUG.
 */
#include "tests/support/cmocka.h"
#include "tests/support/plain_region.h"

#include <errno.h>

#include <pier/element.h>

/* Longer than an element can be; never accessed. */
static const struct pier_mr huge = {
	.mr = &verbs_mr,
	.iova = 0x1000,
	.length = 8ull << 30,
	.access = PIER_ACCESS_REMOTE_READ,
	.path = PIER_PATH_DMABUF,
};

typedef int gather_function(const struct pier_mr *mr, uint64_t addr, size_t length,
			    struct pier_gather *ret_element);
typedef int scatter_function(const struct pier_mr *mr, uint64_t addr, size_t length,
			     struct pier_scatter *ret_element);

#define assert_element(element, a, l)                    \
	do {                                             \
		assert_int_equal((element).addr, (a));   \
		assert_int_equal((element).length, (l)); \
		assert_int_equal((element).lkey, 0x11);  \
	} while (0)

#define assert_element_untouched(element)              \
	do {                                           \
		assert_int_equal((element).addr, 7);   \
		assert_int_equal((element).length, 7); \
		assert_int_equal((element).lkey, 7);   \
	} while (0)

static void check_gather_refusals(gather_function *make)
{
	struct pier_gather element = { 7, 7, 7 };

	assert_int_equal(make(&region, 0x10122, 1, &element), -ERANGE);
	assert_int_equal(make(&region, 0x10123, 1001, &element), -ERANGE);
	assert_int_equal(make(&region, 0x10123 + 1000, 1, &element), -ERANGE);
	assert_int_equal(make(&region, 0x123, 1, &element), -ERANGE);
	assert_int_equal(make(&huge, 0x1000, 1ull << 32, &element), -EMSGSIZE);
	assert_element_untouched(element);
}

static void check_scatter_refusals(scatter_function *make)
{
	struct pier_scatter element = { 7, 7, 7 };

	assert_int_equal(make(&region, 0x10122, 1, &element), -ERANGE);
	assert_int_equal(make(&region, 0x10123 + 1000, 1, &element), -ERANGE);
	assert_int_equal(make(&region, 0x10123, SIZE_MAX, &element), -EMSGSIZE);
	assert_int_equal(make(&huge, 0x1000, 8, &element), -EACCES);
	assert_element_untouched(element);
}

static void check_gather(gather_function *make)
{
	struct pier_gather element = { 7, 7, 7 };

	assert_int_equal(make(&huge, 0x1000, UINT32_MAX, &element), 0);
	assert_element(element, 0x1000, UINT32_MAX);
	assert_int_equal(make(&region, 0x10123 + 1000, 0, &element), 0);
	assert_element(element, 0x10123 + 1000, 0);
}

static void check_scatter(scatter_function *make)
{
	struct pier_scatter element = { 7, 7, 7 };

	assert_int_equal(make(&region, 0x10124, 999, &element), 0);
	assert_element(element, 0x10124, 999);
}

static void checks_elements(void **state)
{
	(void)state;
	check_gather(pier_mr_gather);
	check_scatter(pier_mr_scatter);
	check_gather_refusals(pier_mr_gather);
	check_scatter_refusals(pier_mr_scatter);
}

/*
 * Valid arguments give the same result in both builds; invalid ones are refused only
 * without NDEBUG.
 */
static void debug_checks_depend_on_ndebug(void **state)
{
	(void)state;
	check_gather(pier_mr_gather_debug);
	check_scatter(pier_mr_scatter_debug);
#ifndef NDEBUG
	check_gather_refusals(pier_mr_gather_debug);
	check_scatter_refusals(pier_mr_scatter_debug);
#else
	struct pier_gather gather = { 7, 7, 7 };
	struct pier_scatter scatter = { 7, 7, 7 };

	assert_int_equal(pier_mr_gather_debug(&region, 0x123, 1, &gather), 0);
	assert_element(gather, 0x123, 1);
	assert_int_equal(pier_mr_scatter_debug(&huge, 0x1000, 8, &scatter), 0);
	assert_element(scatter, 0x1000, 8);
#endif
}

static void unchecked_elements_are_not_checked(void **state)
{
	struct pier_gather gather = pier_mr_gather_unchecked(&region, 0x123, 5000);
	struct pier_scatter scatter = pier_mr_scatter_unchecked(&huge, 0x10, 8);

	(void)state;
	assert_element(gather, 0x123, 5000);
	assert_element(scatter, 0x10, 8);
}

/* Run both kinds of element, in all variants, through one function. */
typedef int list_function(const struct pier_mr *mr, uint64_t addr, uint64_t length,
			  struct pier_gather *ret_list, uint32_t capacity,
			  uint32_t *ret_count);

#define AS_GATHER(name)                                                                  \
	static int name##_(const struct pier_mr *mr, uint64_t addr, uint64_t length,     \
			   struct pier_gather *ret_list, uint32_t capacity,              \
			   uint32_t *ret_count)                                          \
	{                                                                                \
		return name(mr, addr, length, (struct pier_scatter *)ret_list, capacity, \
			    ret_count);                                                  \
	}
AS_GATHER(pier_mr_scatter_list)

static list_function *const strengths[] = {
	pier_mr_gather_list,
	pier_mr_scatter_list_,
};
enum {
	STRENGTHS = sizeof(strengths) / sizeof(strengths[0]),
	ROOM = 6,
};

struct list {
	struct pier_gather elements[ROOM];
	uint32_t count;
};

/* A list function must not write beyond the elements that it counted. */
static struct list make_list(list_function *make, const struct pier_mr *mr, uint64_t addr,
			     uint64_t length, uint32_t expected)
{
	struct list list;

	memset(&list, 0x77, sizeof(list));
	assert_int_equal(make(mr, addr, length, list.elements, expected, &list.count), 0);
	assert_int_equal(list.count, expected);
	for (uint32_t i = expected; i < ROOM; i++)
		assert_int_equal(list.elements[i].addr, 0x7777777777777777);
	return list;
}

static void assert_same_element(struct pier_gather element, uint64_t addr,
				uint32_t length, uint32_t lkey)
{
	assert_int_equal(element.addr, addr);
	assert_int_equal(element.length, length);
	assert_int_equal(element.lkey, lkey);
}

static void lists_cover_all_parts(void **state)
{
	struct list list;

	(void)state;
	for (int i = 0; i < STRENGTHS; i++) {
		list = make_list(strengths[i], &region, 0x10124, 999, 1);
		assert_same_element(list.elements[0], 0x10124, 999, 0x11);
		list = make_list(strengths[i], &parted, 0x10001, 99, 1);
		assert_same_element(list.elements[0], 0x10001, 99, 0x31);
		list = make_list(strengths[i], &parted, 0x10001, 100, 2);
		assert_same_element(list.elements[0], 0x10001, 99, 0x31);
		assert_same_element(list.elements[1], 0x7007, 1, 0x32);
		list = make_list(strengths[i], &parted, 0x10063, 3, 3);
		assert_same_element(list.elements[0], 0x10063, 1, 0x31);
		assert_same_element(list.elements[1], 0x7007, 1, 0x32);
		assert_same_element(list.elements[2], 0x10065, 1, 0x33);
		list = make_list(strengths[i], &parted, 0x10064, 2, 2);
		assert_same_element(list.elements[0], 0x7007, 1, 0x32);
		assert_same_element(list.elements[1], 0x10065, 1, 0x33);
	}
}

static void splits_long_ranges(void **state)
{
	const uint64_t end = 0x10065 + (5ull << 30);
	struct list list;

	(void)state;
	for (int i = 0; i < STRENGTHS; i++) {
		list = make_list(strengths[i], &parted, 0x10000, parted.length, 4);
		assert_same_element(list.elements[2], 0x10065, UINT32_MAX, 0x33);
		assert_same_element(list.elements[3], 0x10064 + (1ull << 32),
				    (1u << 30) + 1, 0x33);
		list = make_list(strengths[i], &parted, end - UINT32_MAX, UINT32_MAX, 1);
		assert_same_element(list.elements[0], end - UINT32_MAX, UINT32_MAX, 0x33);
	}
}

static void empty_ranges_have_no_elements(void **state)
{
	(void)state;
	for (int i = 0; i < STRENGTHS; i++) {
		make_list(strengths[i], &parted, parted.iova, 0, 0);
		make_list(strengths[i], &parted, parted.iova + 100, 0, 0);
		make_list(strengths[i], &parted, parted.iova + parted.length, 0, 0);
	}
}

static uint32_t count_elements(uint64_t addr, uint64_t length)
{
	uint32_t count = 7;
	int result = pier_mr_gather_list(&parted, addr, length, NULL, 0, &count);

	assert_int_equal(result, count ? -ENOSPC : 0);
	return count;
}

static void counts_the_elements_of_a_range(void **state)
{
	(void)state;
	assert_int_equal(count_elements(0x10000, parted.length), 4);
	assert_int_equal(count_elements(0x10000, 100), 1);
	assert_int_equal(count_elements(0x10000, 101), 2);
	assert_int_equal(count_elements(0x10064, 0), 0);
}

static void check_list_refusals(list_function *make)
{
	struct pier_gather list[3] = { { 7, 7, 7 }, { 7, 7, 7 }, { 7, 7, 7 } };
	uint32_t count = 7;

	assert_int_equal(make(&parted, 0xffff, 1, list, 3, &count), -ERANGE);
	assert_int_equal(make(&parted, 0x10000, UINT64_MAX, list, 3, &count), -ERANGE);
	assert_int_equal(count, 7);
	assert_int_equal(make(&parted, 0x10063, 3, list, 2, &count), -ENOSPC);
	test_assert_sentence("needs 3 elements, and there is room for 2");
	assert_int_equal(count, 3);
	for (int i = 0; i < 3; i++)
		assert_element_untouched(list[i]);
}

static void refuses_invalid_lists(void **state)
{
	struct pier_gather list[1] = { { 7, 7, 7 } };
	uint32_t count = 7;

	(void)state;
	check_list_refusals(pier_mr_gather_list);
	check_list_refusals(pier_mr_scatter_list_);
	assert_int_equal(pier_mr_scatter_list_(&huge, 0x1000, 8, list, 1, &count),
			 -EACCES);
	assert_element_untouched(list[0]);
	assert_int_equal(count, 7);
}

static void refuses_elements_across_seams(void **state)
{
	struct pier_gather element = { 7, 7, 7 };
	struct pier_scatter target = { 7, 7, 7 };

	(void)state;
	assert_int_equal(pier_mr_gather(&parted, 0x10063, 2, &element), -EXDEV);
	assert_int_equal(pier_mr_scatter(&parted, 0x10064, 2, &target), -EXDEV);
	assert_element_untouched(element);
	assert_element_untouched(target);
	assert_int_equal(pier_mr_gather(&parted, 0x10064, 1, &element), 0);
	assert_same_element(element, 0x7007, 1, 0x32);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(checks_elements),
		cmocka_unit_test(debug_checks_depend_on_ndebug),
		cmocka_unit_test(unchecked_elements_are_not_checked),
		cmocka_unit_test(lists_cover_all_parts),
		cmocka_unit_test(splits_long_ranges),
		cmocka_unit_test(empty_ranges_have_no_elements),
		cmocka_unit_test(counts_the_elements_of_a_range),
		cmocka_unit_test(refuses_invalid_lists),
		cmocka_unit_test(refuses_elements_across_seams),
	};

	return cmocka_run_group_tests_name("element", tests, NULL, NULL);
}
