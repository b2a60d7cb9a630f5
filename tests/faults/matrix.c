/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "matrix.h"
#include "table.h"
#include "core/deadline.h"

enum {
	CASE_SECONDS = 30, /* a case that takes longer hangs */
};

/* One cell of the matrix: operations[index / faults] and faults[index % faults]. */
static const struct operation *operation_of(size_t index)
{
	return &operations[index / fault_count];
}

static const struct fault *fault_of(size_t index)
{
	return &faults[index % fault_count];
}

struct matrix_case {
	size_t index;
	void *world;
	char name[96], device[96];
};

static const char *base_device(void)
{
	const char *device = getenv("PIER_TEST_DEVICE");

	return device ? device : "soft0";
}

static int setup(void **state)
{
	struct matrix_case *matrix_case = *state;
	const struct fault *fault = fault_of(matrix_case->index);

	snprintf(matrix_case->device, sizeof(matrix_case->device), "fault:%s:%s",
		 fault->plan, base_device());
	test_device = matrix_case->device;
	test_peer_device = base_device();
	test_backend = "memfd";
	case_begins(matrix_case->name, CASE_SECONDS);
	return world_setup(&matrix_case->world);
}

static int teardown(void **state)
{
	struct matrix_case *matrix_case = *state;
	int error = world_teardown(&matrix_case->world);

	case_ends();
	return error;
}

/* The operation must not return before its time, and must return soon after it. */
static void expect_time(const struct scene *scene, int64_t start)
{
	int64_t took = (pier_now() - start) / 1000000;
	bool completes = scene->operation->traits & (POSTS | WATCHES);

	if ((scene->fault->means & SLOW) && completes)
		assert_true(took >= LATE_MS);
	assert_true(took < PATIENT);
}

static bool is_expected(const struct outcome *outcome, int error)
{
	if (error == 0 && outcome->or_error == OR_SUCCESS)
		return true;
	return error == outcome->error || (error && error == outcome->or_error);
}

static void meets(void **state)
{
	struct matrix_case *matrix_case = *state;
	struct scene scene = {
		.operation = operation_of(matrix_case->index),
		.fault = fault_of(matrix_case->index),
		.stream = -1,
	};
	const struct outcome *outcome = find_outcome(scene.operation, scene.fault);
	int64_t start;
	int error;

	stage_open(&scene, &matrix_case->world);
	start = pier_now();
	error = scene.operation->run(&scene);
	if (!is_expected(outcome, error))
		fail_msg("%s: %d, not %d: %s", matrix_case->name, error, outcome->error,
			 pier_error_message());
	expect_time(&scene, start);
	if (error && error != -EINPROGRESS)
		test_assert_sentence(outcome->sentence);
	stage_expect(&scene, outcome, error);
}

static bool is_possible(size_t index)
{
	return !(fault_of(index)->means & AT_CONNECTING) ||
	       (operation_of(index)->traits & CONNECTS);
}

static void make_case(size_t index, struct matrix_case *matrix_case,
		      struct CMUnitTest *test)
{
	matrix_case->index = index;
	snprintf(matrix_case->name, sizeof(matrix_case->name), "%s: %s",
		 operation_of(index)->name, fault_of(index)->name);
	*test = (struct CMUnitTest){ matrix_case->name, meets, setup, teardown,
				     matrix_case };
}

static int run_matrix(const char *pattern)
{
	size_t count = operation_count * fault_count;
	struct matrix_case *cases = calloc(count, sizeof(*cases));
	struct CMUnitTest *tests = calloc(count, sizeof(*tests));
	int failed = 1;

	if (cases && tests) {
		size_t made = 0;

		for (size_t i = 0; i < count; i++) {
			if (!is_possible(i))
				continue;
			make_case(i, &cases[made], &tests[made]);
			made++;
		}
		if (pattern)
			cmocka_set_test_filter(pattern);
		failed = _cmocka_run_group_tests("matrix", tests, made, NULL, NULL);
	}
	free(cases);
	free(tests);
	return failed;
}

int main(int argc, char **argv)
{
	static const struct outcome_table table = {
		.program = "fault_matrix",
		.name = "outcomes",
		.print = print_outcomes,
		.run = run_matrix,
	};

	return table_main(argc, argv, &table);
}
