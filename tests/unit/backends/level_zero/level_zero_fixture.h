/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef UNIT_LEVEL_ZERO_FIXTURE_H
#define UNIT_LEVEL_ZERO_FIXTURE_H

#include "tests/fakes/level_zero/control.h"
#include "tests/support/expect.h"
#include "tests/support/census.h"
#include "tests/support/backend.h"

#include "backends/backend.h"
#include "backends/level_zero/api.h"

/*
 * The Level Zero backend on the fake loader, which LD_LIBRARY_PATH finds. A test makes an
 * application's calls through `call`, in a context of the application's own.
 */
struct level_zero_fixture {
	struct pier_ze_functions call;
	void *(*reach)(void *pointer);
	struct fake_level_zero *fake;
	struct fake_level_zero settings; /* as they were before */
	struct _ze_context_handle_t *context;
	struct _ze_device_handle_t *device; /* the application's: number 1 */
	struct test_census census;
};

extern struct level_zero_fixture fixture;

/*
 * Setup and teardown of a group: with fixture_start() the application initialises the
 * drivers, with fixture_open() nobody does.
 */
int fixture_open(void **state);
int fixture_start(void **state);
int fixture_stop(void **state);

/* Of each test: nothing may be left behind. */
int fixture_before(void **state);
int fixture_after(void **state);

/* Allocate device memory in the application's context. */
void *fixture_alloc(size_t size, bool for_export);
void fixture_free(void *pointer);

/* Make the next call of a function fail. */
void fixture_fail(const char *function, unsigned int error);

#define fixture_test(function) \
	cmocka_unit_test_setup_teardown(function, fixture_before, fixture_after)

#endif
