/* SPDX-License-Identifier: BSD-3-Clause */
#include "cache_fixture.h"

#include <stdlib.h>
#include <sys/mman.h>

/*
 * Random operations beside a simple model: linear lists of the regions that are kept and
 * of those in use.
 */

enum {
	SPOTS = 6, /* mappings, and the pages of each */
	PAGES = 4,
	MOST = 12, /* most regions that are kept */
	HELD = 10, /* most regions in use */
	STEPS = 4000,
	MOST_BYTES = 40000,
};

struct region {
	const struct pier_mr *mr;
	uint64_t start, end;
	int access;
	uint64_t used; /* when it was last put */
	int users;
};

static struct region kept[MOST];
static size_t kept_count;
static struct pier_mr *held[HELD];
static size_t held_count;
static char *spots[SPOTS];
static uint64_t now;

static bool serves(const struct region *region, uint64_t start, uint64_t end, int access)
{
	return region->start <= start && region->end >= end &&
	       (access & ~region->access & ~PIER_ACCESS_RELAXED_ORDERING) == 0 &&
	       ((access ^ region->access) & PIER_ACCESS_RELAXED_ORDERING) == 0;
}

static void forget(size_t index)
{
	kept[index] = kept[--kept_count];
}

static bool model_hits(uint64_t start, uint64_t end, int access)
{
	for (size_t i = 0; i < kept_count; i++)
		if (serves(&kept[i], start, end, access))
			return true;
	return false;
}

static uint64_t model_bytes(bool used_only)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < kept_count; i++)
		if (!used_only || kept[i].users > 0)
			bytes += kept[i].end - kept[i].start;
	return bytes;
}

static size_t model_used(void)
{
	size_t used = 0;

	for (size_t i = 0; i < kept_count; i++)
		used += kept[i].users > 0;
	return used;
}

static void evict_oldest(void)
{
	size_t oldest = SIZE_MAX;

	for (size_t i = 0; i < kept_count; i++)
		if (kept[i].users == 0 &&
		    (oldest == SIZE_MAX || kept[i].used < kept[oldest].used))
			oldest = i;
	assert_true(oldest != SIZE_MAX);
	forget(oldest);
}

static void model_keep(const struct pier_mr *mr, uint64_t start, uint64_t end, int access)
{
	uint64_t length = end - start;

	if (model_used() >= MOST || model_bytes(true) + length > MOST_BYTES)
		return;
	while (kept_count >= MOST || model_bytes(false) + length > MOST_BYTES)
		evict_oldest();
	for (size_t i = kept_count; i-- > 0;)
		if (kept[i].access == access && kept[i].start >= start &&
		    kept[i].end <= end)
			forget(i);
	kept[kept_count++] = (struct region){ mr, start, end, access, 0, 1 };
}

static struct region *find_kept(const struct pier_mr *mr)
{
	for (size_t i = 0; i < kept_count; i++)
		if (kept[i].mr == mr)
			return &kept[i];
	return NULL;
}

static void model_drop(uint64_t start, uint64_t end)
{
	for (size_t i = kept_count; i-- > 0;)
		if (kept[i].start < end && kept[i].end > start)
			forget(i);
}

static void step_get(struct test_random *random)
{
	static const int accesses[] = { 0, PIER_ACCESS_LOCAL_WRITE, PIER_ACCESS_SHARED,
					PIER_ACCESS_SHARED |
						PIER_ACCESS_RELAXED_ORDERING };
	char *spot = spots[test_random_below(random, SPOTS)];
	size_t offset = test_random_below(random, PAGES * fixture.page);
	size_t length = 1 + test_random_below(random, PAGES * fixture.page - offset);
	int access = accesses[test_random_below(random, 4)];
	uint64_t start = (uintptr_t)spot + offset, hits = fixture_stats().hits;
	bool hit;
	struct pier_mr *mr;

	if (held_count == HELD)
		return;
	hit = model_hits(start, start + length, access);
	mr = fixture_get(spot + offset, length, access);
	assert_int_equal(fixture_stats().hits - hits, hit);
	assert_true(fixture_is_fresh(mr));
	held[held_count++] = mr;
	if (hit) {
		assert_non_null(find_kept(mr));
		assert_true(serves(find_kept(mr), start, start + length, access));
		find_kept(mr)->users++;
	} else {
		model_keep(mr, start, start + length, access);
	}
}

static void step_put(struct test_random *random)
{
	size_t index = test_random_below(random, HELD);
	struct region *region;

	if (index >= held_count)
		return;
	region = find_kept(held[index]);
	if (region && --region->users == 0)
		region->used = ++now;
	fixture_put(held[index]);
	held[index] = held[--held_count];
}

/* The program unmaps some or all pages, and maps others there. */
static void step_change(struct test_random *random)
{
	char *spot = spots[test_random_below(random, SPOTS)];
	size_t first = test_random_below(random, PAGES);
	size_t count = 1 + test_random_below(random, PAGES - first);
	char *memory = spot + first * fixture.page;
	size_t length = count * fixture.page;

	switch (test_random_below(random, 3)) {
	case 0:
		assert_int_equal(munmap(memory, length), 0);
		/* fall through */
	case 1:
		assert_ptr_equal(mmap(memory, length, PROT_READ | PROT_WRITE,
				      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
				 memory);
		break;
	default:
		assert_int_equal(madvise(memory, length, MADV_DONTNEED), 0);
	}
	fixture_tag(memory, count, ++now);
	model_drop((uintptr_t)memory, (uintptr_t)memory + length);
}

static void step_tell(struct test_random *random)
{
	char *spot = spots[test_random_below(random, SPOTS)];
	size_t offset = test_random_below(random, PAGES * fixture.page);
	size_t length = test_random_below(random, fixture.page);

	if (test_random_below(random, 20) == 0) {
		expect_ok(pier_mr_cache_flush(fixture.cache));
		for (size_t i = kept_count; i-- > 0;)
			if (kept[i].users == 0)
				forget(i);
		return;
	}
	expect_ok(test_cache_invalidate(fixture.cache, spot + offset, length));
	if (length > 0)
		model_drop((uintptr_t)spot + offset, (uintptr_t)spot + offset + length);
}

static void check_counts(void)
{
	struct pier_mr_cache_stats stats = fixture_stats();

	assert_int_equal(stats.count, kept_count);
	assert_int_equal(stats.bytes, model_bytes(false));
	assert_true(stats.count <= MOST && stats.bytes <= MOST_BYTES);
	assert_int_equal(stats.watched, kept_count);
}

static void run(struct test_random *random)
{
	for (int step = 0; step < STEPS; step++) {
		uint64_t way = test_random_below(random, 16);

		if (way < 8)
			step_get(random);
		else if (way < 14)
			step_put(random);
		else if (way == 14)
			step_change(random);
		else
			step_tell(random);
		check_counts();
	}
}

static void agrees_with_a_model(void **state)
{
	struct pier_mr_cache_attr attr;
	struct test_random random = test_random_start();

	pier_mr_cache_attr_init(&attr);
	(void)state;
	fixture_deadline(100);
	attr.max_count = MOST;
	attr.max_bytes = MOST_BYTES;
	fixture_start(&attr);
	fixture_need_watch();
	for (int i = 0; i < SPOTS; i++)
		spots[i] = fixture_map(PAGES, ++now);
	run(&random);
	while (held_count > 0)
		fixture_put(held[--held_count]);
	for (int i = 0; i < SPOTS; i++)
		munmap(spots[i], PAGES * fixture.page);
	fixture_await_live(0);
	fixture_end();
	fixture_deadline(0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(agrees_with_a_model),
	};

	unsetenv("PIER_BACKEND_PATH");
	return cmocka_run_group_tests_name("cache_model", tests, NULL, NULL);
}
