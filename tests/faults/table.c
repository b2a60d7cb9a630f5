/* SPDX-License-Identifier: BSD-3-Clause */
#include "../support/cmocka.h"
#include "../support/manual_clock.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "table.h"

static char running[128];
static const struct outcome_table *documented;

static void hangs(int signal)
{
	static const char text[] = "\nhangs: ";

	(void)signal;
	if (write(STDERR_FILENO, text, sizeof(text) - 1) > 0 &&
	    write(STDERR_FILENO, running, strlen(running)) > 0)
		abort();
	abort();
}

void case_begins(const char *name, unsigned int seconds)
{
	snprintf(running, sizeof(running), "%s\n", name);
	alarm(seconds);
}

void case_ends(void)
{
	alarm(0);
}

/* The page must have the output of print() between its marks. */
static void is_documented(void **state)
{
	const char *path = getenv("PIER_TEST_DOCUMENT");
	char *page = NULL, *table = NULL, begin[64];
	size_t size = 0, length = 0;
	FILE *file = path ? fopen(path, "r") : NULL;
	FILE *printed = open_memstream(&table, &length);
	const char *found;

	(void)state;
	assert_non_null(file);
	assert_true(getdelim(&page, &size, '\0', file) > 0);
	fclose(file);
	documented->print(printed);
	fprintf(printed, "<!-- %s: end -->\n", documented->name);
	fclose(printed);
	snprintf(begin, sizeof(begin), "<!-- %s: begin -->\n", documented->name);
	found = strstr(page, begin);
	assert_non_null(found);
	if (strncmp(found + strlen(begin), table, length) != 0)
		fail_msg("%s has another table than %s --table prints", path,
			 documented->program);
	free(page);
	free(table);
}

int table_main(int argc, char **argv, const struct outcome_table *table)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(is_documented) };
	const struct sigaction action = { .sa_handler = hangs };
	int failed;

	documented = table;
	if (argc == 2 && strcmp(argv[1], "--table") == 0) {
		table->print(stdout);
		return 0;
	}
	sigaction(SIGALRM, &action, NULL);
	manual_clock_run();
	failed = table->run(argc == 2 ? argv[1] : NULL);
	if (argc == 1)
		failed += cmocka_run_group_tests_name("documented", tests, NULL, NULL);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
