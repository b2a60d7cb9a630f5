/* SPDX-License-Identifier: BSD-3-Clause */
#include <fnmatch.h>
#include <limits.h>
#include <string.h>

#include "exclude.h"

/* The length of the bracket expression that begins here, or 0 if it has no end. */
static size_t bracket_length(const char *pattern)
{
	const char *at = pattern + 1;

	at += *at == '!' || *at == '^';
	at += *at == ']';
	for (; *at && *at != ']'; at++) {
		const char *end = NULL;

		if (*at == '\\' && at[1])
			at++;
		else if (*at == '[' && strchr(":.=", at[1]) && at[1])
			end = strstr(at + 2, (const char[]){ at[1], ']', '\0' });
		if (end)
			at = end + 1;
	}
	return *at ? (size_t)(at - pattern) + 1 : 0;
}

/* Whether what the pattern begins with, which is not '*', matches the character. */
static bool matches_one(const char *pattern, char character, bool slashes,
			size_t *ret_length)
{
	char bracket[PATH_MAX];
	size_t length = *pattern == '[' ? bracket_length(pattern) : 0;

	*ret_length = 1;
	if (length && length < sizeof(bracket)) {
		*ret_length = length;
		memcpy(bracket, pattern, length);
		bracket[length] = '\0';
		return (slashes || character != '/') &&
		       fnmatch(bracket, (const char[]){ character, '\0' }, 0) == 0;
	}
	if (*pattern == '?')
		return slashes || character != '/';
	if (*pattern == '\\' && pattern[1]) {
		*ret_length = 2;
		return pattern[1] == character;
	}
	return *pattern == character;
}

/*
 * As fnmatch(3), which takes exponential time for some patterns, and a restricted server
 * matches those of its client. If all from the last '*' fails, an earlier one would fail
 * too.
 *
 * slashes  '*', '?' and brackets match them
 */
static bool matches_path(const char *pattern, const char *path, bool slashes)
{
	const char *star = NULL, *retry = NULL;
	size_t length;

	for (;;) {
		if (*pattern == '*') {
			star = ++pattern;
			retry = path;
		} else if (*path && *pattern &&
			   matches_one(pattern, *path, slashes, &length)) {
			/* Nothing before a slash can match what comes after it. */
			if (*path == '/' && !slashes)
				star = NULL;
			pattern += length;
			path++;
		} else if (!*path && !*pattern) {
			return true;
		} else {
			if (!star || !*retry || (*retry == '/' && !slashes))
				return false;
			pattern = star;
			path = ++retry;
		}
	}
}

/* Of the path, and of each of its ends that begins with a name. */
static bool matches_end(const char *pattern, const char *path, bool slashes)
{
	for (const char *end = path; end; end = strchr(end, '/')) {
		end += *end == '/';
		if (matches_path(pattern, end, slashes))
			return true;
	}
	return false;
}

bool is_excluded(const char *pattern, const char *path, bool directory)
{
	char plain[PATH_MAX];
	size_t length = strlen(pattern);
	const char *slash = strrchr(path, '/');
	bool slashes = strstr(pattern, "**") != NULL;

	if (length >= sizeof(plain) || length == 0)
		return false;
	memcpy(plain, pattern, length + 1);
	if (plain[length - 1] == '/') {
		if (!directory)
			return false;
		plain[length - 1] = '\0';
	}
	if (plain[0] == '/')
		return matches_path(plain + 1, path, slashes);
	if (strchr(plain, '/'))
		return matches_end(plain, path, slashes);
	return matches_path(plain, slash ? slash + 1 : path, slashes);
}
