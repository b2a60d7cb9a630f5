/* SPDX-License-Identifier: BSD-3-Clause */
#include "cases.h"

#include <stdio.h>
#include <stdlib.h>

/*
 * Compares pier's validation with the kernel's: src/region/plan.c predicts the kernel's
 * answer before the system call, and this program also asks the kernel.
 *
 * usage: vm_judge [DEVICE]
 */

static void test_exemptions(void **state)
{
	struct judge *judge = *state;

	court_check_exemptions(&judge->court);
}

/* Reads a counter of the guest's rxe. */
static size_t read_count(const char *name)
{
	char path[96];
	size_t count = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/sys/module/rdma_rxe/parameters/%s", name);
	file = fopen(path, "re");
	if (!file)
		fail_msg("%s: %m", path);
	assert_int_equal(fscanf(file, "%zu", &count), 1);
	fclose(file);
	return count;
}

static int before_case(void **state)
{
	struct judge *judge = *state;

	judge->before = test_take_census();
	judge->dmabufs_before = judge->court.dmabufs;
	judge->driver_before = read_count("dmabuf_registered");
	return 0;
}

/* The driver must have seen the registrations, and have none of them left. */
static int after_case(void **state)
{
	const struct judge *judge = *state;

	test_assert_census(&judge->before);
	assert_int_equal(read_count("dmabuf_live"), 0);
	assert_int_equal(read_count("dmabuf_registered") - judge->driver_before,
			 judge->court.dmabufs - judge->dmabufs_before);
	return 0;
}

#define judge_case(body, judge) \
	cmocka_unit_test_prestate_setup_teardown(body, before_case, after_case, judge)

static int run_cases(void *argument)
{
	struct judge *judge = argument;
	const struct CMUnitTest cases[] = {
		judge_case(judge_dmabuf_ranges, judge),
		judge_case(judge_dmabuf_access, judge),
		judge_case(judge_dmabuf_mistakes, judge),
		judge_case(judge_dmabuf_random, judge),
		judge_case(judge_host_ranges, judge),
		judge_case(judge_host_access, judge),
		judge_case(judge_host_mistakes, judge),
		judge_case(judge_host_random, judge),
		judge_case(test_exemptions, judge),
	};

	return cmocka_run_group_tests_name("judge", cases, NULL, NULL);
}

int main(int argc, char **argv)
{
	struct judge judge = { 0 };

	return court_hold(&judge.court, &judge.targets, argc > 1 ? argv[1] : "rxe0",
			  run_cases, &judge);
}
