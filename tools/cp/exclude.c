/* SPDX-License-Identifier: BSD-3-Clause */
#include <fnmatch.h>
#include <limits.h>
#include <string.h>

#include "exclude.h"

/* Of the path, and of each of its ends that begins with a name. */
static bool matches_end(const char *pattern, const char *path, int flags)
{
	for (const char *end = path; end; end = strchr(end, '/')) {
		end += *end == '/';
		if (fnmatch(pattern, end, flags) == 0)
			return true;
	}
	return false;
}

bool is_excluded(const char *pattern, const char *path, bool directory)
{
	char plain[PATH_MAX];
	size_t length = strlen(pattern);
	const char *slash = strrchr(path, '/');
	int flags = strstr(pattern, "**") ? 0 : FNM_PATHNAME;

	if (length >= sizeof(plain) || length == 0)
		return false;
	memcpy(plain, pattern, length + 1);
	if (plain[length - 1] == '/') {
		if (!directory)
			return false;
		plain[length - 1] = '\0';
	}
	if (plain[0] == '/')
		return fnmatch(plain + 1, path, flags) == 0;
	if (strchr(plain, '/'))
		return matches_end(plain, path, flags);
	return fnmatch(plain, slash ? slash + 1 : path, flags) == 0;
}
