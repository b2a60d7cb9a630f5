/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_SUPPORT_PLUGINS_H
#define TESTS_SUPPORT_PLUGINS_H

/* Include cmocka.h first. */

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Links the shared object `name` of the build folder into a folder. */
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

static inline char *test_liar_folder(void)
{
	static char folder[] = "/tmp/pier-unit-XXXXXX";

	return folder;
}

/* Group setup: sets PIER_BACKEND_PATH to a new folder with the backend "liar". */
static inline int test_make_liar(void **state)
{
	(void)state;
	if (!mkdtemp(test_liar_folder()))
		return -1;
	test_link_plugin(test_liar_folder(), "liar");
	return setenv("PIER_BACKEND_PATH", test_liar_folder(), 1);
}

/* Group teardown: fails if another file was left in the folder. */
static inline int test_remove_liar(void **state)
{
	char link[128];

	(void)state;
	snprintf(link, sizeof(link), "%s/liar.so", test_liar_folder());
	return unlink(link) || rmdir(test_liar_folder());
}

#endif
