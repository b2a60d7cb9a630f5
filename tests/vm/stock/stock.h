/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_VM_STOCK_H
#define TESTS_VM_STOCK_H

#include "../../support/cmocka.h"
#include "../../support/census.h"
#include "../../support/expect.h"

#include <pier/pier.h>

enum {
	/* Some pages, and no multiple of one. */
	STOCK_LENGTH = 5 * 4096 + 77,
};

/* Warnings and errors that the library logged. */
struct stock_log {
	unsigned int count;
	char last[1024];
};

/* What a case runs with; afterwards the census must be as it was before. */
struct stock {
	struct pier_device *device;
	struct pier_pd *pd;
	struct stock_log log;
	struct test_census before;
};

extern const char *stock_device;

int stock_setup(void **state);
int stock_teardown(void **state);
#define stock_case(body) \
	cmocka_unit_test_setup_teardown(body, stock_setup, stock_teardown)

struct pier_buffer *stock_alloc(const char *spec);

/* That nothing was logged. */
void stock_expect_quiet(const struct stock *stock);

/* Each file of cases runs its group; how many failed. */
int run_policy_cases(void);
int run_bytes_cases(void);

#endif
