/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_SUPPORT_CENSUS_H
#define TESTS_SUPPORT_CENSUS_H

/* Include cmocka.h first. */

#include <dirent.h>

#include <pier/object.h>

/* State that a test must not change: the number of open fds and of live objects. */
struct test_census {
	size_t fds;
	size_t objects[PIER_OBJECT_RING + 1];
};

static inline size_t test_count_fds(void)
{
	DIR *folder = opendir("/proc/self/fd");
	size_t count = 0;

	assert_non_null(folder);
	for (struct dirent *entry; (entry = readdir(folder));)
		count += entry->d_name[0] != '.';
	closedir(folder);
	return count - 1; /* without the folder's own */
}

static inline struct test_census test_take_census(void)
{
	struct test_census census = { .fds = test_count_fds() };

	for (int kind = 0; kind <= PIER_OBJECT_RING; kind++)
		census.objects[kind] = pier_object_count((enum pier_object_kind)kind);
	return census;
}

static inline void test_assert_census(const struct test_census *before)
{
	struct test_census now = test_take_census();

	assert_int_equal(now.fds, before->fds);
	for (int kind = 0; kind <= PIER_OBJECT_RING; kind++)
		assert_int_equal(now.objects[kind], before->objects[kind]);
}

#endif
