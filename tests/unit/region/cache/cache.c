/* SPDX-License-Identifier: BSD-3-Clause */
#include "cache_fixture.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

/* The rules of the registration cache, for memory that the caller manages. */

static struct pier_mr_cache_attr by_hand(size_t max_count, uint64_t max_bytes)
{
	struct pier_mr_cache_attr attr;

	pier_mr_cache_attr_init(&attr);
	attr.flags = PIER_MR_CACHE_UNWATCHED;
	attr.max_count = max_count;
	attr.max_bytes = max_bytes;
	return attr;
}

static void start(size_t max_count, uint64_t max_bytes)
{
	struct pier_mr_cache_attr attr = by_hand(max_count, max_bytes);

	fixture_start(&attr);
}

static char bytes[1 << 16];

static void expect_counts(uint64_t hits, uint64_t misses, size_t count)
{
	struct pier_mr_cache_stats stats = fixture_stats();

	assert_int_equal(stats.hits, hits);
	assert_int_equal(stats.misses, misses);
	assert_int_equal(stats.count, count);
}

static void refuses_invalid_attributes(void **state)
{
	struct {
		struct pier_mr_cache_attr attr;
		uint64_t more;
	} newer = { .attr = by_hand(1, 1), .more = 0 };
	struct pier_mr_cache_attr attr = by_hand(1, 1);
	struct pier_mr_cache *cache = (struct pier_mr_cache *)0x1;

	(void)state;
	start(1, 1);
	attr.size = 31;
	expect_result(pier_mr_cache_create(&fixture.pd, &attr, &cache), -EINVAL);
	test_assert_sentence("size 31 is less than 32");
	attr = by_hand(1, 1);
	attr.flags |= 0x40;
	expect_result(pier_mr_cache_create(&fixture.pd, &attr, &cache), -EINVAL);
	test_assert_sentence("flags 0x40");
	attr = by_hand(1, 1);
	attr.policy = (enum pier_policy)77;
	expect_result(pier_mr_cache_create(&fixture.pd, &attr, &cache), -EINVAL);
	test_assert_sentence("policy 77");
	newer.attr.size = sizeof(newer);
	newer.more = 1ull << 56;
	expect_result(pier_mr_cache_create(&fixture.pd, &newer.attr, &cache), -EINVAL);
	test_assert_sentence("byte 47 of 48 is set");
	assert_ptr_equal(cache, (void *)0x1);
	newer.more = 0;
	expect_ok(pier_mr_cache_create(&fixture.pd, &newer.attr, &cache));
	assert_int_equal(pier_object_count(PIER_OBJECT_MR_CACHE), 2);
	expect_ok(pier_mr_cache_destroy(cache));
	expect_ok(pier_mr_cache_destroy(NULL));
	fixture_end();
}

static void refuses_invalid_requests(void **state)
{
	struct pier_mr *mr = (struct pier_mr *)0x1;

	(void)state;
	start(10, 1000);
	expect_result(test_cache_get(fixture.cache, NULL, 1, 1, &mr), -EINVAL);
	expect_result(test_cache_get(fixture.cache, bytes, 0, 1, &mr), -EINVAL);
	test_assert_sentence("length 0");
	expect_result(test_cache_get(fixture.cache, bytes, SIZE_MAX, 1, &mr), -EINVAL);
	expect_result(test_cache_get(fixture.cache, bytes, 1, 1 << 30, &mr), -EINVAL);
	test_assert_sentence("access 0x40000000");
	expect_result(
		test_cache_get(fixture.cache, bytes, 1, PIER_ACCESS_REMOTE_WRITE, &mr),
		-EINVAL);
	assert_ptr_equal(mr, (void *)0x1);
	expect_result(test_cache_invalidate(fixture.cache, bytes, SIZE_MAX), -EINVAL);
	test_assert_sentence("leave the address space");
	expect_counts(0, 0, 0);
	assert_int_equal(fixture_stats().bytes, 0);
	fixture_end();
}

static void enclosed_range_is_a_hit(void **state)
{
	struct pier_mr *whole, *part;

	(void)state;
	start(10, 100000);
	whole = fixture_get(bytes + 100, 1000, PIER_ACCESS_SHARED);
	fixture_put(whole);
	expect_counts(0, 1, 1);
	assert_int_equal(fixture_stats().bytes, 1000);
	/* The whole range, its middle, and both ends. */
	assert_ptr_equal(fixture_get(bytes + 100, 1000, PIER_ACCESS_SHARED), whole);
	assert_ptr_equal(fixture_get(bytes + 500, 1, PIER_ACCESS_SHARED), whole);
	assert_ptr_equal(fixture_get(bytes + 100, 1, PIER_ACCESS_SHARED), whole);
	assert_ptr_equal(fixture_get(bytes + 1099, 1, PIER_ACCESS_SHARED), whole);
	expect_counts(4, 1, 1);
	assert_int_equal(fixture_stats().in_use, 1);
	/* One byte too far on either side. */
	part = fixture_get(bytes + 99, 2, PIER_ACCESS_SHARED);
	assert_ptr_not_equal(part, whole);
	fixture_put(part);
	part = fixture_get(bytes + 1099, 2, PIER_ACCESS_SHARED);
	assert_ptr_not_equal(part, whole);
	fixture_put(part);
	expect_counts(4, 3, 3);
	for (int i = 0; i < 4; i++)
		fixture_put(whole);
	assert_int_equal(fixture_stats().in_use, 0);
	assert_int_equal(atomic_load(&fixture.live), 3);
	fixture_end();
}

/*
 * For every pair of access rights: a hit if and only if the cached region has all the
 * rights requested.
 */
static void hit_needs_all_rights(void **state)
{
	static const int flags[] = { 0,
				     PIER_ACCESS_REMOTE_READ,
				     PIER_ACCESS_LOCAL_WRITE,
				     PIER_ACCESS_LOCAL_WRITE | PIER_ACCESS_REMOTE_WRITE,
				     PIER_ACCESS_LOCAL_WRITE | PIER_ACCESS_REMOTE_ATOMIC,
				     PIER_ACCESS_SHARED,
				     PIER_ACCESS_SHARED | PIER_ACCESS_REMOTE_ATOMIC };
	enum {
		COUNT = sizeof(flags) / sizeof(flags[0])
	};

	(void)state;
	for (int has = 0; has < 2 * COUNT; has++) {
		for (int want = 0; want < 2 * COUNT; want++) {
			int relaxed[] = { has < COUNT ? 0 : PIER_ACCESS_RELAXED_ORDERING,
					  want < COUNT ? 0
						       : PIER_ACCESS_RELAXED_ORDERING };
			int a = flags[has % COUNT], b = flags[want % COUNT];
			bool hit = (a & b) == b && relaxed[0] == relaxed[1];

			start(10, 100000);
			fixture_touch(bytes, 100, a | relaxed[0]);
			fixture_touch(bytes + 10, 10, b | relaxed[1]);
			expect_counts(hit, 2 - hit, 2 - hit);
			fixture_end();
		}
	}
}

static void larger_region_replaces_smaller(void **state)
{
	struct pier_mr *used, *large;

	(void)state;
	start(10, 100000);
	fixture_touch(bytes + 100, 10, 1);
	fixture_touch(bytes + 200, 10, 1);
	used = fixture_get(bytes + 300, 10, 1);
	fixture_touch(bytes + 395, 10, 1);	    /* extends past the range */
	fixture_touch(bytes + 100, 10, 0);	    /* other rights: not touched */
	assert_int_equal(fixture_stats().count, 4); /* the last one was a hit */
	large = fixture_get(bytes + 100, 300, 1);
	/*
	 * Two idle regions are gone; one in use is only detached. The larger region and
	 * the one that extends past the range are kept.
	 */
	assert_int_equal(fixture_stats().count, 2);
	assert_int_equal(fixture_stats().in_use, 2);
	assert_int_equal(atomic_load(&fixture.live), 3);
	fixture_put(used);
	assert_int_equal(atomic_load(&fixture.live), 2);
	assert_ptr_equal(fixture_get(bytes + 300, 10, 1), large);
	fixture_put(large);
	fixture_put(large);
	fixture_end();
}

static void least_recently_used_goes_first(void **state)
{
	struct pier_mr *first, *held;

	(void)state;
	start(3, 100000);
	for (int i = 0; i < 3; i++)
		fixture_touch(bytes + 100 * i, 100, 1);
	first = fixture_get(bytes, 100, 1);
	fixture_put(first);			 /* 1, 2, 0 */
	held = fixture_get(bytes + 100, 100, 1); /* in use: 2 and 0 can go */
	fixture_touch(bytes + 300, 100, 1);	 /* 2 goes */
	assert_int_equal(fixture_stats().evictions, 1);
	assert_int_equal(atomic_load(&fixture.live), 3);
	assert_ptr_equal(fixture_get(bytes, 100, 1), first);
	fixture_put(first);
	assert_int_equal(fixture_stats().misses, 4);
	fixture_touch(bytes + 200, 100, 1); /* 3 goes, the older of 3 and 0 */
	assert_int_equal(fixture_stats().misses, 5);
	assert_ptr_equal(fixture_get(bytes, 100, 1), first);
	assert_ptr_equal(fixture_get(bytes + 100, 100, 1), held);
	fixture_put(first);
	fixture_put(held);
	fixture_put(held);
	assert_int_equal(fixture_stats().count, 3);
	fixture_end();
}

static void cached_bytes_are_bounded(void **state)
{
	struct pier_mr *large;

	(void)state;
	start(100, 1000);
	for (int i = 0; i < 10; i++)
		fixture_touch(bytes + 100 * i, 100, 1);
	assert_int_equal(fixture_stats().bytes, 1000);
	fixture_touch(bytes + 5000, 350, 1);
	assert_int_equal(fixture_stats().evictions, 4);
	assert_int_equal(fixture_stats().bytes, 950);
	/* Longer than the limit: it evicts nothing and is not kept. */
	large = fixture_get(bytes, 1001, 1);
	assert_int_equal(fixture_stats().evictions, 4);
	assert_int_equal(fixture_stats().bytes, 950);
	assert_int_equal(fixture_stats().uncached, 1);
	assert_int_equal(atomic_load(&fixture.live), 8);
	fixture_put(large);
	assert_int_equal(atomic_load(&fixture.live), 7);
	fixture_touch(bytes + 10000, 1000, 1);
	assert_int_equal(fixture_stats().bytes, 1000);
	assert_int_equal(fixture_stats().count, 1);
	fixture_end();
}

static void regions_in_use_stay(void **state)
{
	struct pier_mr *mr[4], *again;

	(void)state;
	start(3, 100000);
	for (int i = 0; i < 4; i++)
		mr[i] = fixture_get(bytes + 100 * i, 100, 1);
	assert_int_equal(fixture_stats().count, 3);
	assert_int_equal(fixture_stats().uncached, 1);
	assert_int_equal(fixture_stats().in_use, 4);
	/* A region that is not kept serves no other request. */
	again = fixture_get(bytes + 300, 100, 1);
	assert_ptr_not_equal(again, mr[3]);
	fixture_put(again);
	assert_int_equal(fixture_stats().evictions, 0);
	for (int i = 0; i < 4; i++)
		fixture_put(mr[i]);
	assert_int_equal(atomic_load(&fixture.live), 3);
	fixture_end();
	/* A limit of zero. */
	start(0, 100000);
	fixture_touch(bytes, 1, 1);
	fixture_touch(bytes, 1, 1);
	expect_counts(0, 2, 0);
	assert_int_equal(fixture_stats().uncached, 2);
	fixture_end();
}

static void invalidate_drops_overlapping_regions(void **state)
{
	struct pier_mr *used;

	(void)state;
	start(10, 100000);
	fixture_touch(bytes, 100, 1);
	used = fixture_get(bytes + 150, 100, 1);
	fixture_touch(bytes + 300, 100, 1);
	/* No overlap: adjacent and empty ranges. */
	expect_ok(test_cache_invalidate(fixture.cache, bytes + 100, 50));
	expect_ok(test_cache_invalidate(fixture.cache, bytes + 250, 50));
	expect_ok(test_cache_invalidate(fixture.cache, bytes + 350, 0));
	assert_int_equal(fixture_stats().invalidations, 0);
	expect_ok(test_cache_invalidate(fixture.cache, bytes + 99, 52));
	assert_int_equal(fixture_stats().invalidations, 2);
	assert_int_equal(fixture_stats().count, 1);
	assert_int_equal(atomic_load(&fixture.live),
			 2); /* at once, except for the region in use */
	fixture_touch(bytes + 150, 100, 1);
	expect_counts(0, 4, 2);
	fixture_put(used);
	assert_int_equal(atomic_load(&fixture.live), 2);
	expect_ok(test_cache_invalidate(fixture.cache, NULL, SIZE_MAX));
	assert_int_equal(atomic_load(&fixture.live), 0);
	fixture_end();
}

static void flush_drops_idle_regions(void **state)
{
	struct pier_mr *used;

	(void)state;
	start(10, 100000);
	fixture_touch(bytes, 100, 1);
	used = fixture_get(bytes + 100, 100, 1);
	expect_ok(pier_mr_cache_flush(fixture.cache));
	assert_int_equal(atomic_load(&fixture.live), 1);
	fixture_put(used);
	assert_ptr_equal(fixture_get(bytes + 100, 100, 1), used);
	fixture_put(used);
	fixture_end();
}

static void refuses_misuse_of_cache_and_regions(void **state)
{
	struct pier_mr_cache *other;
	struct pier_mr_cache_attr attr = by_hand(10, 100);
	struct pier_mr plain = { .length = 1 };
	struct pier_mr *mr;

	(void)state;
	start(10, 100000);
	mr = fixture_get(bytes, 100, 1);
	expect_result(pier_mr_cache_destroy(fixture.cache), -EBUSY);
	test_assert_sentence("1 of its regions are handed out");
	expect_result(pier_mr_dereg(mr), -EINVAL);
	test_assert_sentence("pier_mr_cache_put()");
	expect_ok(pier_mr_cache_create(&fixture.pd, &attr, &other));
	expect_result(pier_mr_cache_put(other, mr), -EINVAL);
	test_assert_sentence("did not hand it out");
	expect_result(pier_mr_cache_put(fixture.cache, &plain), -EINVAL);
	expect_ok(pier_mr_cache_destroy(other));
	fixture_put(mr);
	expect_result(pier_mr_cache_put(fixture.cache, mr), -EINVAL);
	test_assert_sentence("more often than it was handed out");
	expect_ok(pier_mr_cache_put(fixture.cache, NULL));
	assert_ptr_equal(fixture_get(bytes, 100, 1), mr);
	fixture_put(mr);
	fixture_end();
}

/* A registration that runs out of memory evicts idle regions. */
static void out_of_memory_evicts_idle_regions(void **state)
{
	struct pier_mr *mr = (struct pier_mr *)0x1, *used;

	(void)state;
	start(10, 100000);
	used = fixture_get(bytes, 100, 1);
	fixture_touch(bytes + 100, 100, 1);
	atomic_store(&fixture.fails, 1);
	fixture_touch(bytes + 200, 100, 1);
	assert_int_equal(atomic_load(&fixture.live), 2);
	assert_int_equal(fixture_stats().evictions, 1);
	atomic_store(&fixture.fails, 2);
	expect_result(test_cache_get(fixture.cache, bytes + 300, 100, 1, &mr), -ENOMEM);
	assert_ptr_equal(mr, (void *)0x1);
	/* Nothing left to evict: no retry. */
	atomic_store(&fixture.fails, 2);
	expect_result(test_cache_get(fixture.cache, bytes + 300, 100, 1, &mr), -ENOMEM);
	assert_int_equal(atomic_load(&fixture.fails), 1);
	atomic_store(&fixture.fails, 0);
	assert_int_equal(fixture_stats().count, 1);
	assert_int_equal(fixture_stats().bytes, 100);
	fixture_put(used);
	fixture_end();
}

/* A failed deregistration is retried, and keeps the cache alive. */
static void failed_deregistration_is_retried(void **state)
{
	(void)state;
	start(1, 100000);
	fixture_touch(bytes, 100, 1);
	atomic_store(&fixture.sticks, 3);
	fixture_touch(bytes + 100, 100, 1); /* tries to evict, in vain */
	assert_int_equal(atomic_load(&fixture.live), 2);
	assert_int_equal(fixture_stats().count, 1);
	expect_result(pier_mr_cache_flush(fixture.cache), -EBUSY);
	assert_int_equal(atomic_load(&fixture.live), 2);
	assert_int_equal(atomic_load(&fixture.sticks), 0);
	atomic_store(&fixture.sticks, 1);
	expect_result(pier_mr_cache_destroy(fixture.cache), -EBUSY);
	expect_ok(pier_mr_cache_flush(fixture.cache));
	assert_int_equal(atomic_load(&fixture.live), 0);
	fixture_end();
}

/* Another thread registers the same range first, in the middle of this registration. */
static void get_the_same(void *addr)
{
	fixture.on_register = NULL;
	fixture_touch(addr, 100, 1);
}

static void get_larger(void *addr)
{
	fixture.on_register = NULL;
	fixture_touch((char *)addr - 10, 200, 1);
}

static void go_meanwhile(void *addr)
{
	fixture.on_register = NULL;
	expect_ok(test_cache_invalidate(fixture.cache, addr, 1));
}

static void two_equal_misses_keep_one_region(void **state)
{
	struct pier_mr *mr;

	(void)state;
	start(2, 100000);
	fixture.on_register = get_the_same;
	mr = fixture_get(bytes, 100, 1);
	assert_int_equal(atomic_load(&fixture.registered), 2);
	assert_int_equal(atomic_load(&fixture.live), 1);
	expect_counts(0, 2, 1);
	assert_int_equal(fixture_stats().bytes, 100);
	assert_int_equal(fixture_stats().in_use, 1);
	fixture_put(mr);
	assert_ptr_equal(fixture_get(bytes, 100, 1), mr);
	fixture_put(mr);
	fixture_end();
}

/* The enclosing region came first: the smaller one is not kept beside it. */
static void larger_concurrent_miss_wins(void **state)
{
	struct pier_mr *mr;

	(void)state;
	start(5, 100000);
	fixture.on_register = get_larger;
	mr = fixture_get(bytes + 100, 100, 1);
	assert_int_equal(pier_mr_length(mr), 200);
	assert_int_equal(atomic_load(&fixture.live), 1);
	expect_counts(0, 2, 1);
	assert_int_equal(fixture_stats().bytes, 200);
	fixture_put(mr);
	fixture_end();
}

static void invalidated_while_registering(void **state)
{
	struct pier_mr *mr;

	(void)state;
	start(2, 100000);
	fixture.on_register = go_meanwhile;
	mr = fixture_get(bytes, 100, 1);
	expect_counts(0, 1, 0);
	assert_int_equal(fixture_stats().uncached, 1);
	assert_int_equal(fixture_stats().bytes, 0);
	fixture_put(mr);
	assert_int_equal(atomic_load(&fixture.live), 0);
	fixture_end();
}

/* A request that needs more access sets than the cache has room for is not kept. */
static void region_beyond_the_set_limit_is_not_kept(void **state)
{
	(void)state;
	start(1000, 1000000);
	fixture.cache->set_count = PIER_CACHE_SETS - 1;
	fixture_touch(bytes, 100, 1);
	fixture_touch(bytes, 100, PIER_ACCESS_SHARED);
	expect_counts(0, 2, 1);
	assert_int_equal(fixture_stats().uncached, 1);
	assert_int_equal(fixture_stats().bytes, 100);
	assert_int_equal(atomic_load(&fixture.live), 1);
	fixture_end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(refuses_invalid_attributes),
		cmocka_unit_test(refuses_invalid_requests),
		cmocka_unit_test(enclosed_range_is_a_hit),
		cmocka_unit_test(hit_needs_all_rights),
		cmocka_unit_test(larger_region_replaces_smaller),
		cmocka_unit_test(least_recently_used_goes_first),
		cmocka_unit_test(cached_bytes_are_bounded),
		cmocka_unit_test(regions_in_use_stay),
		cmocka_unit_test(invalidate_drops_overlapping_regions),
		cmocka_unit_test(flush_drops_idle_regions),
		cmocka_unit_test(refuses_misuse_of_cache_and_regions),
		cmocka_unit_test(out_of_memory_evicts_idle_regions),
		cmocka_unit_test(failed_deregistration_is_retried),
		cmocka_unit_test(two_equal_misses_keep_one_region),
		cmocka_unit_test(larger_concurrent_miss_wins),
		cmocka_unit_test(invalidated_while_registering),
		cmocka_unit_test(region_beyond_the_set_limit_is_not_kept),
	};

	unsetenv("PIER_BACKEND_PATH");
	return cmocka_run_group_tests_name("cache", tests, NULL, NULL);
}
