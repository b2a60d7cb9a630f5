/* SPDX-License-Identifier: BSD-3-Clause */
#include <fnmatch.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cp/list.h"

/* After failure.h, which has a function with the name of a macro. */
#include "../support/cmocka.h"

enum {
	ROUNDS = 300000
};

/* Of fnmatch(3), which walk.c calls for brackets; unlimited if the limit is 0. */
static unsigned long calls, limit;

int __real_fnmatch(const char *pattern, const char *string, int flags);
int __wrap_fnmatch(const char *pattern, const char *string, int flags);

int __wrap_fnmatch(const char *pattern, const char *string, int flags)
{
	if (limit && (pattern[0] != '[' || strlen(string) != 1))
		fail_msg("fnmatch(3) searches for %s", pattern);
	if (limit && ++calls > limit)
		fail_msg("more than %lu steps", limit);
	return __real_fnmatch(pattern, string, flags);
}

/* Patterns of --exclude that begin with a slash are compared with the whole path. */
static bool matches(const char *pattern, const char *path)
{
	char anchored[128];

	snprintf(anchored, sizeof(anchored), "/%s", pattern);
	return is_excluded(anchored, path, false);
}

static void fill(char *text, const char *const *parts, size_t count)
{
	size_t length = 1 + (size_t)rand() % 6;

	text[0] = '\0';
	while (length-- > 0)
		strcat(text, parts[(size_t)rand() % count]);
}

static void agrees_with_fnmatch(void **state)
{
	static const char *const parts[] = { "a",    "b",    "-",     "*",    "?",
					     "/",    "[ab]", "[!a]",  "[]a]", "[a-b]",
					     "\\\\", "\\*",  "[*-?]", ".",    "*" };
	static const char *const names[] = {
		"a", "b", "/", "-", "*", "?", "]", "\\", "."
	};
	char pattern[64], path[64];

	(void)state;
	srand(1);
	for (int i = 0; i < ROUNDS; i++) {
		fill(pattern, parts, sizeof(parts) / sizeof(parts[0]));
		fill(path, names, sizeof(names) / sizeof(names[0]));
		/* Of rsync alone: "**", a slash at the end, and backslashes without "*".
		 */
		if (strstr(pattern, "**") || pattern[strlen(pattern) - 1] == '/' ||
		    !strpbrk(pattern, "*?["))
			continue;
		if (matches(pattern, path) != (fnmatch(pattern, path, FNM_PATHNAME) == 0))
			fail_msg("%s on %s", pattern, path);
	}
}

/* Going back to each star. */
static bool search(const char *pattern, const char *path)
{
	size_t stars = strspn(pattern, "*");

	if (!stars)
		return *path ? (*pattern == *path || (*pattern == '?' && *path != '/')) &&
				       search(pattern + 1, path + 1)
			     : !*pattern;
	for (;; path++) {
		if (search(pattern + stars, path))
			return true;
		if (!*path || (stars == 1 && *path == '/'))
			return false;
	}
}

static bool search_ends(const char *pattern, const char *path)
{
	while (path && !search(pattern, path)) {
		path = strchr(path, '/');
		path += path != NULL;
	}
	return path;
}

static void agrees_with_a_search(void **state)
{
	static const char *const parts[] = { "a", "b", "/", "?", "*", "**" };
	char pattern[64], path[64], below[65];

	(void)state;
	srand(2);
	for (int i = 0; i < ROUNDS; i++) {
		const char *name;
		bool found;

		fill(pattern, parts, sizeof(parts) / sizeof(parts[0]));
		fill(path, parts, 3);
		if (!strpbrk(pattern, "*?") || pattern[strlen(pattern) - 1] == '/')
			continue;
		assert_int_equal(matches(pattern, path), search(pattern, path));
		name = strrchr(path, '/');
		snprintf(below, sizeof(below), "/%s", path);
		if (strncmp(pattern, "**", 2) == 0)
			found = search(pattern, below);
		else if (strchr(pattern, '/') || strstr(pattern, "**"))
			found = search_ends(pattern, path);
		else
			found = search(pattern, name ? name + 1 : path);
		if (pattern[0] != '/' && is_excluded(pattern, path, false) != found)
			fail_msg("%s on %s", pattern, path);
	}
}

/* What "rsync -rn --exclude PATTERN src copy" of version 3.2.7 lists: +, or not: -. */
static void agrees_with_rsync(void **state)
{
	static const char *const paths[] = { "src",	      "src/a",	 "src/ab",
					     "src/d",	      "src/d/a", "src/d/e",
					     "src/d/e/x.key", "src/src", "src/src/a" };
	static const char directories[] = "+..+.+.+.";
	static const char *const cases[][2] = {
		{ "/src/", "-........" },   { "/**", "-........" },
		{ "***/**", "-........" },  { "?/***", "+++-...++" },
		{ "d/***", "+++-...++" },   { "**/a", "+-++-+++-" },
		{ "d/**", "++++--.++" },    { "/src/*/a", "++++-+++-" },
		{ "s**a", "+-++-+++-" },    { "/s**a", "+-++-+++-" },
		{ "*", "-........" },	    { "a", "+-++-+++-" },
		{ "a/", "+++++++++" },	    { "**", "-........" },
		{ "**/", "-........" },	    { "src/d/", "+++-...++" },
		{ "d/*/", "+++++-.++" },    { "/src/d/**/", "+++++-.++" },
		{ "[ab]b", "++-++++++" },   { "[!d]", "+-++--.+-" },
		{ "[x", "+++++++++" },	    { "\\a", "+++++++++" },
		{ "\\a*", "+--+-+++-" },    { "e/x.*", "++++++-++" },
		{ "src/*", "+---...-." },   { "/*/*/e", "+++++-.++" },
		{ "/d", "+++++++++" },	    { "**e/*", "++++++-++" },
		{ "src/***", "-........" }, { "/src/***", "-........" },
		{ "***", "-........" },	    { "*/src", "+++++++-." },
		{ "x.*", "++++++-++" },	    { "/src/**/x.key", "++++++-++" },
		{ "d/[e]", "+++++-.++" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		for (size_t p = 0; p < sizeof(paths) / sizeof(paths[0]); p++)
			if (cases[i][1][p] != '.' &&
			    is_excluded(cases[i][0], paths[p], directories[p] == '+') !=
				    (cases[i][1][p] == '-'))
				fail_msg("%s on %s", cases[i][0], paths[p]);
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

/* A client of a restricted server chooses the patterns, and may choose the names. */
static void costs_the_product_of_both_lengths(void **state)
{
	static const char *const patterns[] = {
		"**[a]*[a]*[a]*[a]*[a]*[a]*[a]*[a]*[a]*[a]*[a]*b",
		"**[a]**[a]**[a]**[a]**[a]**[a]**[a]**[a]**[a]**[a]**[a]**b",
		"[a]*[a]*[a]*[a]*[a]*[a]*[a]*[a]*[a]*[a]*[a]*b",
		"**[a][a][a][a][a][a][a][a][a][a][a][a][a][a][a]b",
		"[a]**/**[a]**/[a]**[a]/**/[a]/[a]/b",
	};
	char path[4001];

	(void)state;
	for (size_t i = 0; i < 2 * sizeof(patterns) / sizeof(patterns[0]); i++) {
		const char *pattern = patterns[i / 2];

		for (size_t c = 0; c < sizeof(path) - 1; c++)
			path[c] = i % 2 && c % 2 ? '/' : 'a';
		path[sizeof(path) - 1] = '\0';
		calls = 0;
		limit = strlen(pattern) * strlen(path);
		assert_false(is_excluded(pattern, path, false));
		assert_false(matches(pattern, path));
		limit = 0;
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(agrees_with_fnmatch),
		cmocka_unit_test(agrees_with_a_search),
		cmocka_unit_test(agrees_with_rsync),
		cmocka_unit_test(knows_brackets),
		cmocka_unit_test(costs_the_product_of_both_lengths),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
