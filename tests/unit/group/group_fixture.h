/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef UNIT_GROUP_SCENE_H
#define UNIT_GROUP_SCENE_H

#include "tests/support/census.h"
#include "tests/support/crew.h"
#include "tests/support/expect.h"
#include "tests/support/random.h"

#include <stdlib.h>

/* A crew for each test, which leaves no objects. */

static uint64_t seed;

struct group_fixture {
	struct test_census before;
	struct crew crew;
};

static inline int setup(void **state)
{
	struct group_fixture *fixture = calloc(1, sizeof(*fixture));

	if (!seed)
		seed = test_random_start().state;
	fixture->before = test_take_census();
	*state = fixture;
	return 0;
}

static inline int teardown(void **state)
{
	struct group_fixture *fixture = *state;

	expect_ok(crew_close(&fixture->crew));
	test_assert_census(&fixture->before);
	free(fixture);
	return 0;
}

#endif
