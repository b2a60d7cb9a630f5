/* SPDX-License-Identifier: BSD-3-Clause */
/* Members killed in barriers: soft0 reports at once to all others which rank died. */
#include "tests/support/cmocka.h"
#include "tests/support/crew_killing.h"
#include "tests/support/expect.h"

#include <errno.h>
#include <stdio.h>

enum {
	SIZE = 5,
};

static void kill_each_in(enum pier_barrier_algorithm algorithm)
{
	for (uint32_t victim = 0; victim < SIZE; victim++) {
		struct crew_killing killing = {
			.size = SIZE,
			.victim = victim,
			.late = (victim + 3) % SIZE,
			.algorithm = algorithm,
			.timeout_ms = CREW_PATIENT,
			.device = "soft0",
			.odd_device = "soft0",
		};

		expect_ok(crew_kill(&killing));
		for (uint32_t rank = 0; rank < SIZE; rank++) {
			const struct crew_report *report = &killing.reports[rank];
			char name[32];

			if (rank == victim)
				continue;
			snprintf(name, sizeof(name), "rank %u ", victim);
			if (report->culprit != (int)victim || !report->error ||
			    report->error == -ETIMEDOUT ||
			    (report->first_error && report->first_error != -ECONNRESET) ||
			    !strstr(report->sentence, name))
				fail_msg("victim %u, rank %u: %d, %d, blames %d: %s",
					 victim, rank, report->first_error, report->error,
					 report->culprit, report->sentence);
		}
	}
}

static void central_barrier_names_a_killed_rank(void **state)
{
	(void)state;
	kill_each_in(PIER_BARRIER_CENTRAL);
}

static void binary_tree_names_a_killed_rank(void **state)
{
	(void)state;
	kill_each_in(PIER_BARRIER_BINARY_TREE);
}

static void dissemination_names_a_killed_rank(void **state)
{
	(void)state;
	kill_each_in(PIER_BARRIER_DISSEMINATION);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(central_barrier_names_a_killed_rank),
		cmocka_unit_test(binary_tree_names_a_killed_rank),
		cmocka_unit_test(dissemination_names_a_killed_rank),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
