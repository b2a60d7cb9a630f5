/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "operand.h"

static const char *skip_user(const char *text)
{
	size_t user = strcspn(text, "@:/[");

	return text[user] == '@' ? text + user + 1 : text;
}

/* The colon that ends a host, or NULL. */
static const char *find_colon(const char *text)
{
	const char *host = skip_user(text), *colon;

	if (host[0] == '[') {
		colon = strchr(host, ']');
		return colon && colon[1] == ':' ? colon + 1 : NULL;
	}
	colon = strpbrk(text, ":/");
	return colon && *colon == ':' ? colon : NULL;
}

/* "[::1:path" is more likely a typing error than a file name. */
static bool lacks_bracket(const char *text)
{
	const char *host = skip_user(text), *end = strpbrk(host, ":/");

	return host[0] == '[' && end && *end == ':' && !find_colon(text);
}

/* The user and the name are not empty and are not taken for options by the shell. */
static bool host_is_valid(const char *host)
{
	const char *user_end = strrchr(host, '@');
	const char *name = user_end ? user_end + 1 : host;

	return host != user_end && host[0] != '-' && name[0] && name[0] != '-';
}

/* "user@[fe80::1]" is "user@fe80::1" to ssh(1). */
static int copy_host(const char *text, size_t length, struct operand *ret_operand)
{
	char *out = ret_operand->host;
	size_t i;

	if (length >= sizeof(ret_operand->host))
		return -1;
	for (i = 0; i < length; i++)
		if (text[i] != '[' && text[i] != ']')
			*out++ = text[i];
	*out = '\0';
	return 0;
}

int parse_operand(const char *text, struct operand *ret_operand, struct failure *failure)
{
	const char *colon = find_colon(text);
	const char *path = colon ? colon + 1 : text;

	memset(ret_operand, 0, sizeof(*ret_operand));
	if (lacks_bracket(text))
		return fail(failure, EXIT_USAGE,
			    "'%s' has no ']:' after its '['; write [ADDRESS]:PATH for an "
			    "IPv6 address, or ./NAME for a file name with a colon",
			    text);
	if (colon && (copy_host(text, (size_t)(colon - text), ret_operand) < 0 ||
		      !host_is_valid(ret_operand->host)))
		return fail(failure, EXIT_USAGE,
			    "'%s' does not begin with a host name; write ./NAME for a "
			    "file name with a colon",
			    text);
	/* The server starts in the home directory, and no shell expands the path. */
	if (colon && strncmp(path, "~/", 2) == 0)
		path += 2 + strspn(path + 2, "/");
	if (colon && !*path)
		path = ".";
	if (!*path)
		return fail(failure, EXIT_USAGE,
			    "empty path: SRC and DST must name files");
	if (strlen(path) >= sizeof(ret_operand->path))
		return fail(failure, EXIT_USAGE,
			    "the path is too long (%zu bytes, at most %zu)", strlen(path),
			    sizeof(ret_operand->path) - 1);
	strcpy(ret_operand->path, path);
	return 0;
}
