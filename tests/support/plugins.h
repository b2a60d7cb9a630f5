/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_SUPPORT_PLUGINS_H
#define TESTS_SUPPORT_PLUGINS_H

/* After cmocka.h and what it needs. */

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Put the shared object `name` of the build folder into a folder, by a link. */
static inline void test_link_plugin(const char *folder, const char *name)
{
	const char *plugins = getenv("PIER_TEST_PLUGINS");
	char from[512], to[512];

	if (!plugins) {
		fail_msg("PIER_TEST_PLUGINS is not set: run this by meson test");
		return;
	}
	snprintf(from, sizeof(from), "%s/%s.so", plugins, name);
	snprintf(to, sizeof(to), "%s/%s.so", folder, name);
	assert_int_equal(symlink(from, to), 0);
}

#endif
