/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/cmocka.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "provider/provider.h"

/* libibverbs' answers about memory on demand; the program replaces the driver. */

static struct {
	int error, legacy_error;
	uint64_t caps;
} answer;

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *ret_attr)
{
	(void)context;
	memset(ret_attr, 0, sizeof(*ret_attr));
	return answer.legacy_error;
}

static int query_device_ex(struct ibv_context *context,
			   const struct ibv_query_device_ex_input *input,
			   struct ibv_device_attr_ex *ret_attr, size_t size)
{
	(void)context;
	assert_null(input);
	assert_int_equal(size, sizeof(*ret_attr));
	memset(ret_attr, 0xff, size);
	ret_attr->odp_caps.general_caps = answer.caps;
	return answer.error;
}

static struct verbs_context driver = {
	.sz = sizeof(driver),
	.query_device_ex = query_device_ex,
	.context = { .abi_compat = __VERBS_ABI_IS_EXTENDED },
};

static void expect(struct ibv_context *context, bool on_demand)
{
	bool got = !on_demand;

	assert_int_equal(pier_verbs_provider.query_on_demand(context, &got), 0);
	assert_int_equal(got, on_demand);
}

static void reports_the_answers_of_the_driver(void **state)
{
	(void)state;
	answer.caps = IBV_ODP_SUPPORT;
	expect(&driver.context, true);
	answer.caps = IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT;
	expect(&driver.context, true);
	answer.caps = IBV_ODP_SUPPORT_IMPLICIT;
	expect(&driver.context, false);
	answer.caps = 0;
	expect(&driver.context, false);
}

/* libibverbs then uses the query that every driver supports. */
static void falls_back_to_the_old_query(void **state)
{
	struct ibv_context old = { 0 };

	(void)state;
	answer.caps = IBV_ODP_SUPPORT;
	answer.error = EOPNOTSUPP;
	expect(&driver.context, false);
	answer.error = ENOSYS;
	expect(&driver.context, false);
	answer.legacy_error = EOPNOTSUPP;
	expect(&driver.context, false);
	expect(&old, false);
	answer.error = answer.legacy_error = 0;
}

static void reports_a_failed_query(void **state)
{
	bool got = true;

	(void)state;
	answer.error = EIO;
	assert_int_equal(pier_verbs_provider.query_on_demand(&driver.context, &got), EIO);
	assert_true(got);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reports_the_answers_of_the_driver),
		cmocka_unit_test(falls_back_to_the_old_query),
		cmocka_unit_test(reports_a_failed_query),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
