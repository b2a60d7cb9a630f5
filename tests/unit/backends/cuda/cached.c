/* SPDX-License-Identifier: BSD-3-Clause */
/* Registration caches on memory of several segments, as PyTorch's expandable ones are. */
#include "cuda_fixture.h"

static struct {
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_mr_cache *cache;
	struct fixture_vmm range;
} fixture;

static int setup(void **state)
{
	fixture_setup(state);
	expect_ok(pier_device_open("soft0", &fixture.device));
	expect_ok(pier_pd_alloc(fixture.device, &fixture.pd));
	expect_ok(pier_mr_cache_create(fixture.pd, NULL, &fixture.cache));
	fixture.range = fixture_map(0, FIXTURE_BLOCK, 3, true);
	return 0;
}

static int teardown(void **state)
{
	expect_ok(pier_mr_cache_destroy(fixture.cache));
	expect_ok(pier_pd_dealloc(fixture.pd));
	expect_ok(pier_device_close(fixture.device));
	fixture_unmap(&fixture.range);
	return fixture_teardown(state);
}

static struct pier_mr *get(uint64_t offset, uint64_t length)
{
	struct pier_mr *mr = NULL;

	expect_ok(test_cache_get(fixture.cache,
				 (void *)(uintptr_t)(fixture.range.address + offset),
				 length, PIER_ACCESS_SHARED, &mr));
	return mr;
}

static struct pier_mr_cache_stats stats(void)
{
	struct pier_mr_cache_stats stats;

	pier_mr_cache_query_stats(fixture.cache, &stats, sizeof(stats));
	return stats;
}

static void put(struct pier_mr *mr)
{
	expect_ok(pier_mr_cache_put(fixture.cache, mr));
}

/* New memory in one segment. */
static void remap(uint32_t segment)
{
	uint64_t address = fixture.range.address + segment * FIXTURE_BLOCK;

	assert_int_equal(app.cuMemUnmap(address, FIXTURE_BLOCK), CUDA_SUCCESS);
	fixture_map_one(address, FIXTURE_BLOCK, 0, true);
}

static void keeps_a_region_of_several_segments(void **state)
{
	struct pier_mr *mr = get(100, fixture.range.length - 100);

	(void)state;
	assert_int_equal(pier_mr_parts(mr), 3);
	put(mr);
	assert_ptr_equal(get(100, fixture.range.length - 100), mr);
	/* Also for a part of it, across a seam. */
	assert_ptr_equal(get(FIXTURE_BLOCK - 1, 2), mr);
	assert_int_equal(stats().hits, 2);
	assert_int_equal(stats().unwatched, 0);
	put(mr);
	put(mr);
}

static void never_hits_a_remapped_segment(void **state)
{
	(void)state;
	for (uint32_t segment = 0; segment < 3; segment++) {
		struct pier_mr *mr = get(0, fixture.range.length);
		uint64_t hits = stats().hits, invalid = stats().invalidations;

		put(mr);
		remap(segment);
		mr = get(0, fixture.range.length);
		assert_int_equal(stats().hits, hits);
		assert_int_equal(stats().invalidations, invalid + 1);
		put(mr);
	}
}

/* A part of the region that still has its memory does not hit either. */
static void drops_the_region_with_any_of_its_segments(void **state)
{
	struct pier_mr *mr = get(0, fixture.range.length);

	(void)state;
	put(mr);
	remap(2);
	mr = get(0, 100);
	assert_int_equal(stats().hits, 0);
	assert_int_equal(pier_mr_length(mr), 100);
	put(mr);
}

/* A segment is missing: nothing to register, and no hit. */
static void never_hits_an_unmapped_segment(void **state)
{
	uint64_t middle = fixture.range.address + FIXTURE_BLOCK;
	struct pier_mr *mr = get(0, fixture.range.length);

	(void)state;
	put(mr);
	assert_int_equal(app.cuMemUnmap(middle, FIXTURE_BLOCK), CUDA_SUCCESS);
	expect_result(test_cache_get(fixture.cache,
				     (void *)(uintptr_t)fixture.range.address,
				     fixture.range.length, PIER_ACCESS_SHARED, &mr),
		      -ERANGE);
	fixture_map_one(middle, FIXTURE_BLOCK, 0, true);
	put(get(0, fixture.range.length));
	assert_int_equal(stats().hits, 0);
}

/* Mapped anew, the segments cannot be told from the old ones: CUDA before 12. */
static void keeps_no_segments_without_numbers(void **state)
{
	struct pier_mr *mr;

	(void)state;
	app.control->version = 11080;
	mr = get(0, fixture.range.length);
	put(mr);
	put(get(0, fixture.range.length));
	assert_int_equal(stats().hits, 0);
	assert_int_equal(stats().unwatched, 2);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		CASE(keeps_a_region_of_several_segments),
		CASE(never_hits_a_remapped_segment),
		CASE(drops_the_region_with_any_of_its_segments),
		CASE(never_hits_an_unmapped_segment),
		CASE(keeps_no_segments_without_numbers),
	};

	return cmocka_run_group_tests(tests, fixture_begin, NULL);
}
