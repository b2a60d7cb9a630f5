/* SPDX-License-Identifier: BSD-3-Clause */
/* Each kind of transfer meets each fault, as transfers.h says. */
#include "../support/cmocka.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "transfers.h"

enum {
	CASE_SECONDS = 60, /* what takes longer hangs */
};

struct transfer_case {
	const struct kind *kind;
	const struct transfer_fault *fault;
	char name[120];
};

static char running[128];

static void hangs(int signal)
{
	static const char text[] = "\nhangs: ";

	(void)signal;
	if (write(STDERR_FILENO, text, sizeof(text) - 1) > 0 &&
	    write(STDERR_FILENO, running, strlen(running)) > 0)
		abort();
	abort();
}

static int setup_case(void **state)
{
	const struct transfer_case *transfer_case = *state;

	snprintf(running, sizeof(running), "%s\n", transfer_case->name);
	alarm(CASE_SECONDS);
	return transfer_setup(state);
}

static int teardown_case(void **state)
{
	int error = transfer_teardown(state);

	alarm(0);
	return error;
}

static void meets(void **state)
{
	const struct transfer_case *transfer_case = *state;

	play_transfer(transfer_case->kind, transfer_case->fault);
}

/* Between its marks the page has what print_transfer_outcomes() prints. */
static void is_documented(void **state)
{
	static const char begin[] = "<!-- transfers: begin -->\n";
	const char *path = getenv("PIER_TEST_DOCUMENT");
	char *page = NULL, *table = NULL;
	size_t size = 0, length = 0;
	FILE *file = path ? fopen(path, "r") : NULL;
	FILE *printed = open_memstream(&table, &length);
	const char *found;

	(void)state;
	assert_non_null(file);
	assert_true(getdelim(&page, &size, '\0', file) > 0);
	fclose(file);
	print_transfer_outcomes(printed);
	fputs("<!-- transfers: end -->\n", printed);
	fclose(printed);
	found = strstr(page, begin);
	assert_non_null(found);
	if (strncmp(found + sizeof(begin) - 1, table, length) != 0)
		fail_msg("%s has another table than fault_transfers --table prints",
			 path);
	free(page);
	free(table);
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
	const struct CMUnitTest documented[] = { cmocka_unit_test(is_documented) };
	const struct sigaction action = { .sa_handler = hangs };
	int failed;

	if (argc == 2 && strcmp(argv[1], "--table") == 0) {
		print_transfer_outcomes(stdout);
		return 0;
	}
	sigaction(SIGALRM, &action, NULL);
	failed = run_cases(argc == 2 ? argv[1] : NULL);
	if (argc == 1)
		failed += cmocka_run_group_tests_name("documented", documented, NULL,
						      NULL);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
