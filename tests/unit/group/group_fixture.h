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

struct scene {
	struct test_census before;
	struct crew crew;
};

static inline int setup(void **state)
{
	struct scene *scene = calloc(1, sizeof(*scene));

	if (!seed)
		seed = test_random_start().state;
	scene->before = test_take_census();
	*state = scene;
	return 0;
}

static inline int teardown(void **state)
{
	struct scene *scene = *state;

	expect_ok(crew_close(&scene->crew));
	test_assert_census(&scene->before);
	free(scene);
	return 0;
}

#endif
