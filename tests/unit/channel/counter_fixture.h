/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef UNIT_COUNTER_FIXTURE_H
#define UNIT_COUNTER_FIXTURE_H

#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"

#include "channel/channel.h"
#include "channel/counter.h"
#include "core/deadline.h"
#include "region/mr.h"
#include "nic/nic.h"

/* Objects over the fake NIC for the tests of counters. */

enum {
	PATIENT = 30000, /* for what must happen, in milliseconds */
	BRIEF = 30,	 /* for what must not happen */
};

/* A region that the fake NIC does not know. */
static inline struct pier_mr region_of(struct pier_pd *pd, struct ibv_mr *mr)
{
	return (struct pier_mr){
		.mr = mr,
		.length = 1000,
		.access = PIER_ACCESS_SHARED,
		.pd = pd,
	};
}

static inline struct pier_counter *counter_of(struct pier_pd *pd)
{
	struct pier_counter *counter = NULL;

	expect_ok(pier_counter_create(pd, &counter));
	return counter;
}

/* Destroy the last counter. */
static inline void destroy(struct pier_counter *counter)
{
	expect_ok(pier_counter_destroy(counter));
	assert_int_equal(fake.pd.children, 0);
	assert_int_equal(pier_object_count(PIER_OBJECT_COUNTER), 0);
}

static struct test_census census_before;

static inline int take_census(void **state)
{
	(void)state;
	census_before = test_take_census();
	return 0;
}

static inline int check_census(void **state)
{
	(void)state;
	test_assert_census(&census_before);
	return 0;
}

#define counter_case(body) \
	cmocka_unit_test_setup_teardown(body, take_census, check_census)

#endif
