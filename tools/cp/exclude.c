/* SPDX-License-Identifier: BSD-3-Clause */
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
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
static bool matches_one(const char *pattern, char character, size_t *ret_length)
{
	char bracket[PATH_MAX];
	size_t length;

	*ret_length = 1;
	if (*pattern == '?')
		return character != '/';
	if (*pattern == '\\' && pattern[1]) {
		*ret_length = 2;
		return pattern[1] == character;
	}
	if (*pattern != '[')
		return *pattern == character;
	/* Without an end, it matches nothing. */
	length = bracket_length(pattern);
	if (!length || character == '/')
		return false;
	*ret_length = length;
	memcpy(bracket, pattern, length);
	bracket[length] = '\0';
	return fnmatch(bracket, (const char[]){ character, '\0' }, 0) == 0;
}

/* The places of a pattern that can have been reached in a text. */
struct places {
	bool reached[PATH_MAX];
	size_t end; /* of those that were reached */
};

static void reach_place(struct places *places, size_t place)
{
	places->reached[place] = true;
	if (places->end <= place)
		places->end = place + 1;
}

static void pass_stars(struct places *places, const char *pattern)
{
	for (size_t i = 0; i < places->end; i++)
		if (places->reached[i] && pattern[i] == '*')
			reach_place(places, i + strspn(pattern + i, "*"));
}

/* Backwards, so that a place is left before it is reached again. */
static void pass_character(struct places *places, const char *pattern, char character)
{
	size_t i = places->end, length;

	places->end = 0;
	while (i-- > 0) {
		if (!places->reached[i])
			continue;
		places->reached[i] = false;
		if (pattern[i] == '*') {
			if (pattern[i + 1] == '*' || character != '/')
				reach_place(places, i);
		} else if (pattern[i] && matches_one(pattern + i, character, &length)) {
			reach_place(places, i + length);
		}
	}
}

/*
 * Whether all of the text matches; names: or the text behind one of its slashes.
 *
 * A restricted server matches the patterns of its client. To go back to each '*', as
 * fnmatch(3) does, can take exponential time; to follow all places of the pattern at once
 * takes the product of both lengths.
 */
static bool matches_text(const char *pattern, const char *text, bool names)
{
	struct places places;

	memset(places.reached, 0, strlen(pattern) + 1);
	places.end = 0;
	reach_place(&places, 0);
	for (; *text && (names || places.end); text++) {
		pass_stars(&places, pattern);
		pass_character(&places, pattern, *text);
		if (names && *text == '/')
			reach_place(&places, 0);
	}
	pass_stars(&places, pattern);
	return !*text && places.end > strlen(pattern);
}

/* Whether the text is the path; names: or what follows one of its slashes. */
static bool is_end(const char *text, const char *path, bool names)
{
	size_t length = strlen(text), all = strlen(path);

	if (length > all || strcmp(path + all - length, text) != 0)
		return false;
	return length == all || (names && path[all - length - 1] == '/');
}

/* As rsync does, in its exclude.c. */
bool is_excluded(const char *pattern, const char *path, bool directory)
{
	char plain[PATH_MAX], text[PATH_MAX + 2];
	size_t length = strlen(pattern);
	const char *slash = strrchr(path, '/');
	bool anchored = pattern[0] == '/', begins, ends;

	if (length >= sizeof(plain) || length == 0)
		return false;
	memcpy(plain, pattern, length + 1);
	if (length > 1 && plain[length - 1] == '/') {
		if (!directory)
			return false;
		plain[--length] = '\0';
	}
	if (!strpbrk(plain, "*?["))
		return is_end(plain + anchored, path, !anchored);
	if (slash && !strchr(plain, '/') && !strstr(plain, "**"))
		path = slash + 1;
	/* "**" with a slash behind it matches at the top, too, and one before a last
	 * "***" the directory itself. */
	begins = strncmp(plain, "**", 2) == 0;
	ends = directory && length >= 3 && strcmp(plain + length - 3, "***") == 0;
	snprintf(text, sizeof(text), "%s%s%s", begins ? "/" : "", path, ends ? "/" : "");
	return matches_text(plain + anchored, text, !anchored && !begins);
}
