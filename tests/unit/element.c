/* SPDX-License-Identifier: BSD-3-Clause */
/* Elements: values, so no device is needed. Built with and without NDEBUG. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "../support/plain_region.h"

#include <errno.h>

#include <pier/element.h>

/* Longer than an element can be, and not to be written to. */
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

static void test_checked(void **state)
{
	(void)state;
	check_gather(pier_gather);
	check_scatter(pier_scatter);
	check_gather_refusals(pier_gather);
	check_scatter_refusals(pier_scatter);
}

/* What is right is the same in both builds; what is wrong passes in one. */
static void test_debug(void **state)
{
	(void)state;
	check_gather(pier_gather_debug);
	check_scatter(pier_scatter_debug);
#ifndef NDEBUG
	check_gather_refusals(pier_gather_debug);
	check_scatter_refusals(pier_scatter_debug);
#else
	struct pier_gather gather = { 7, 7, 7 };
	struct pier_scatter scatter = { 7, 7, 7 };

	assert_int_equal(pier_gather_debug(&region, 0x123, 1, &gather), 0);
	assert_element(gather, 0x123, 1);
	assert_int_equal(pier_scatter_debug(&huge, 0x1000, 8, &scatter), 0);
	assert_element(scatter, 0x1000, 8);
#endif
}

static void test_unchecked(void **state)
{
	struct pier_gather gather = pier_gather_unchecked(&region, 0x123, 5000);
	struct pier_scatter scatter = pier_scatter_unchecked(&huge, 0x10, 8);

	(void)state;
	assert_element(gather, 0x123, 5000);
	assert_element(scatter, 0x10, 8);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_checked),
		cmocka_unit_test(test_debug),
		cmocka_unit_test(test_unchecked),
	};

	return cmocka_run_group_tests_name("element", tests, NULL, NULL);
}
