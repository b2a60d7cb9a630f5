/* SPDX-License-Identifier: BSD-3-Clause */
#include <fnmatch.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../support/cmocka.h"
#include "../../tools/cp/exclude.h"

enum {
	ROUNDS = 300000
};

/* Patterns of --exclude that begin with a slash are compared with the whole path. */
static bool matches(const char *pattern, const char *path)
{
	char anchored[64];

	snprintf(anchored, sizeof(anchored), "/%s", pattern);
	return is_excluded(anchored, path, true);
}

static void fill(char *text, const char *alphabet, size_t most)
{
	size_t length = 1 + (size_t)rand() % most;

	for (size_t i = 0; i < length; i++)
		text[i] = alphabet[(size_t)rand() % strlen(alphabet)];
	text[length] = '\0';
}

/* fnmatch(3) has special rules for a slash or a backslash in a bracket. */
static bool is_plain(const char *pattern)
{
	return !strpbrk(pattern, "[]") || !strpbrk(pattern, "/\\");
}

static void agrees_with_fnmatch(void **state)
{
	(void)state;
	srand(1);
	for (int i = 0; i < ROUNDS; i++) {
		char pattern[16], path[16];
		int flags;

		fill(pattern, i % 2 ? "ab/**?" : "ab*[]!^-\\?", 8);
		fill(path, "aab/", 8);
		flags = strstr(pattern, "**") ? 0 : FNM_PATHNAME;
		if (!is_plain(pattern) || pattern[strlen(pattern) - 1] == '/')
			continue;
		if (matches(pattern, path) != (fnmatch(pattern, path, flags) == 0))
			fail_msg("%s on %s", pattern, path);
	}
}

static void knows_brackets(void **state)
{
	(void)state;
	assert_true(matches("[[:digit:]]x", "1x"));
	assert_false(matches("[![:digit:]]x", "1x"));
	assert_true(matches("[]a]", "]"));
	assert_true(matches("[\\]]", "]"));
	assert_true(matches("[a-c]*[!x]", "b/c") ==
		    (fnmatch("[a-c]*[!x]", "b/c", FNM_PATHNAME) == 0));
	assert_false(matches("a[/]b", "a/b"));
	assert_true(matches("\\*", "*"));
	assert_false(matches("\\*", "a"));
}

/* A client of a restricted server chooses the patterns. */
static void takes_no_exponential_time(void **state)
{
	static const char *const patterns[] = {
		"**?*?*?*?*?*?*?*?*?*?*?*?*?*?*?*?*?*?*?*?*?*?*?*?*Z",
		"*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*b",
		"*[a]*[a]*[a]*[a]*[a]*[a]*[a]*[a]*[a]*[a]*[a]*b",
	};
	char path[4000];

	(void)state;
	for (size_t i = 0; i < sizeof(path) - 1; i++)
		path[i] = 'a';
	path[sizeof(path) - 1] = '\0';
	for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
		assert_false(is_excluded(patterns[i], path, false));
		assert_false(matches(patterns[i], path));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(agrees_with_fnmatch),
		cmocka_unit_test(knows_brackets),
		cmocka_unit_test(takes_no_exponential_time),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
