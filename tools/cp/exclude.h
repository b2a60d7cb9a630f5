/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_EXCLUDE_H
#define PIER_TOOLS_CP_EXCLUDE_H

#include <stdbool.h>

/*
 * The patterns of --exclude, as in rsync(1): "*", "?" and "[...]" do not match a slash,
 * "**" does. A pattern with a slash at its end matches directories only, and one that
 * ends in a slash and "***" a directory and all that is in it. One with a slash at its
 * start is compared with the whole path, which begins with the name of the operand. One
 * with another slash, or with "**", is compared with the end of the path, others with its
 * last name. A backslash makes the next character a plain one, if there is a "*", "?" or
 * "[".
 */
bool is_excluded(const char *pattern, const char *path, bool directory);

#endif
