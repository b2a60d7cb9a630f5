/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "soft_grants.h"
#include "provider/soft/regions/segments.h"

/* Files that are larger, or of more pieces, than the initiator can map. */

/* Writes there are a SIGXFSZ for a process with such a limit. */
static void file_beyond_the_file_size_limit(void **state)
{
	const uint64_t far = UINT64_C(1) << 30;
	int fd = peer_memfd(far + LENGTH, 0, FINAL);
	struct rlimit before, limit;
	struct pair pair;

	(void)state;
	open_pair(&pair);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	limit = before;
	limit.rlim_cur = 1 << 20;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
	give_grant(&pair, 0, &fd, 1, far, LENGTH, 1);
	assert_int_equal(write_all(&pair, 0), IBV_WC_SUCCESS);
	assert_false(has_grant(&pair, 0));
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
	close_pair(&pair);
	close(fd);
}

static uint64_t count_mapped_bytes(int *ret_mappings)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	uint64_t sum = 0;
	char line[512];

	assert_non_null(maps);
	*ret_mappings = 0;
	while (fgets(line, sizeof(line), maps)) {
		unsigned long long first, last;

		if (!strstr(line, "/memfd:hostile") ||
		    sscanf(line, "%llx-%llx", &first, &last) != 2)
			continue;
		sum += last - first;
		++*ret_mappings;
	}
	fclose(maps);
	return sum;
}

/* Sparse files that would use up the address space. */
static void regions_larger_than_the_address_space(void **state)
{
	const uint64_t sizes[] = { UINT64_C(1) << 46, UINT64_C(1) << 39,
				   UINT64_C(1) << 41 };
	struct pair pair;
	int mappings;

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		int fd = peer_memfd(sizes[i], 0, FINAL);

		open_pair(&pair);
		for (int key = 0; key < KEYS; key++)
			give_grant(&pair, key, &fd, 1, 0, sizes[i], 1);
		assert_in_range(count_mapped_bytes(&mappings), 0, UINT64_C(1) << 40);
		assert_int_equal(write_all(&pair, KEYS - 1), IBV_WC_SUCCESS);
		close_pair(&pair);
		close(fd);
	}
	/* Nothing is left, and nothing is counted any more. */
	assert_int_equal(count_mapped_bytes(&mappings), 0);
	assert_true(pier_soft_reserve_mapping(UINT64_C(1) << 42, 0));
	pier_soft_release_mapping(UINT64_C(1) << 42, 0);
}

/* Several links to one process add up. */
static void many_links_share_one_bound(void **state)
{
	enum {
		PAIRS = 10
	};
	const uint64_t size = UINT64_C(1) << 39;
	int fd = peer_memfd(size, 0, FINAL), mappings;
	struct pair pairs[PAIRS];

	(void)state;
	for (int i = 0; i < PAIRS; i++) {
		open_pair(&pairs[i]);
		for (int key = 0; key < 2; key++)
			give_grant(&pairs[i], key, &fd, 1, 0, size, 1);
	}
	assert_in_range(count_mapped_bytes(&mappings), size, UINT64_C(1) << 42);
	for (int i = 0; i < PAIRS; i++)
		close_pair(&pairs[i]);
	close(fd);
	assert_int_equal(count_mapped_bytes(&mappings), 0);
}

/* The kernel limits mappings in number, too. */
static void regions_of_many_pieces(void **state)
{
	int fd = peer_memfd(LENGTH, 0, FINAL), mappings;
	int before = fixture_count_fds(), fds[SOFT_GRANT_SEGMENTS];
	struct pair pairs[2];

	(void)state;
	for (int i = 0; i < SOFT_GRANT_SEGMENTS; i++)
		fds[i] = fd;
	for (int i = 0; i < 2; i++) {
		open_pair(&pairs[i]);
		for (int key = 0; key < KEYS; key++)
			give_grant(&pairs[i], key, fds, SOFT_GRANT_SEGMENTS, 0, 4096,
				   SOFT_GRANT_SEGMENTS);
	}
	count_mapped_bytes(&mappings);
	assert_in_range(mappings, 1, 2 * 1024);
	for (int i = 0; i < 2; i++)
		close_pair(&pairs[i]);
	assert_int_equal(fixture_count_fds(), before);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(regions_larger_than_the_address_space),
		cmocka_unit_test(many_links_share_one_bound),
		cmocka_unit_test(regions_of_many_pieces),
		cmocka_unit_test(file_beyond_the_file_size_limit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
