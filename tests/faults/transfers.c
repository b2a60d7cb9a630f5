/* SPDX-License-Identifier: BSD-3-Clause */
/* Runs each kind of transfer with each fault: see transfers.h. */
#include "../support/cmocka.h"

#include <stdio.h>
#include <stdlib.h>

#include "table.h"
#include "transfers.h"

enum {
	CASE_SECONDS = 60, /* a case that takes longer hangs */
};

struct transfer_case {
	const struct kind *kind;
	const struct transfer_fault *fault;
	char name[120];
};

static int setup_case(void **state)
{
	const struct transfer_case *transfer_case = *state;

	case_begins(transfer_case->name, CASE_SECONDS);
	return transfer_setup(state);
}

static int teardown_case(void **state)
{
	int error = transfer_teardown(state);

	case_ends();
	return error;
}

static void meets(void **state)
{
	const struct transfer_case *transfer_case = *state;

	play_transfer(transfer_case->kind, transfer_case->fault);
}

static size_t make_cases(struct transfer_case *cases, struct CMUnitTest *tests)
{
	size_t made = 0;

	tests[made++] = (struct CMUnitTest)cmocka_unit_test_setup_teardown(
		refuse_registrations, transfer_setup, transfer_teardown);
	for (size_t k = 0; k < kind_count; k++) {
		for (size_t f = 0; f < transfer_fault_count; f++) {
			struct transfer_case *now = &cases[made];

			now->kind = &kinds[k];
			now->fault = &transfer_faults[f];
			if (!can_meet(now->kind, now->fault))
				continue;
			snprintf(now->name, sizeof(now->name), "%s: %s", now->kind->name,
				 now->fault->name);
			tests[made++] = (struct CMUnitTest){ now->name, meets, setup_case,
							     teardown_case, now };
		}
	}
	return made;
}

static int run_cases(const char *pattern)
{
	size_t count = 1 + kind_count * transfer_fault_count;
	struct transfer_case *cases = calloc(count, sizeof(*cases));
	struct CMUnitTest *tests = calloc(count, sizeof(*tests));
	int failed = 1;

	if (pattern)
		cmocka_set_test_filter(pattern);
	if (cases && tests)
		failed = _cmocka_run_group_tests("transfers", tests,
						 make_cases(cases, tests),
						 transfers_begin, transfers_end);
	free(cases);
	free(tests);
	return failed;
}

int main(int argc, char **argv)
{
	static const struct outcome_table table = {
		.program = "fault_transfers",
		.name = "transfers",
		.print = print_transfer_outcomes,
		.run = run_cases,
	};

	return table_main(argc, argv, &table);
}
