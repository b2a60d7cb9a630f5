/* SPDX-License-Identifier: BSD-3-Clause */
/* Regions of dma-bufs, which an fd names: memfds, on soft0. */
#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <pier/pier.h>

static struct {
	struct test_census before;
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_mr_cache *cache;
	size_t page;
} fixture;

static int begin_test(void **state)
{
	(void)state;
	fixture.before = test_take_census();
	fixture.page = (size_t)sysconf(_SC_PAGESIZE);
	expect_ok(pier_device_open("soft0", &fixture.device));
	expect_ok(pier_pd_alloc(fixture.device, &fixture.pd));
	expect_ok(pier_mr_cache_create(fixture.pd, NULL, &fixture.cache));
	return 0;
}

static int end_test(void **state)
{
	(void)state;
	expect_ok(pier_mr_cache_destroy(fixture.cache));
	expect_ok(pier_pd_dealloc(fixture.pd));
	expect_ok(pier_device_close(fixture.device));
	test_assert_census(&fixture.before);
	return 0;
}

static int make_file(uint64_t length)
{
	int fd = memfd_create("pier-test", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)length), 0);
	return fd;
}

static struct pier_mr *get(int fd, uint64_t offset, uint64_t length)
{
	struct pier_mr_range range = pier_mr_range_dmabuf(fd, offset, length);
	struct pier_mr *mr = NULL;

	expect_ok(pier_mr_cache_get(fixture.cache, &range, PIER_ACCESS_SHARED, &mr));
	/* The addresses are the offsets in the dma-buf. */
	assert_true(pier_mr_encloses(mr, offset, length));
	assert_int_equal(pier_mr_path(mr), PIER_PATH_DMABUF);
	return mr;
}

static void put(struct pier_mr *mr)
{
	expect_ok(pier_mr_cache_put(fixture.cache, mr));
}

static struct pier_mr_cache_stats stats(void)
{
	struct pier_mr_cache_stats stats;

	pier_mr_cache_query_stats(fixture.cache, &stats, sizeof(stats));
	return stats;
}

static void any_fd_of_a_dma_buf_hits(void **state)
{
	int fd = make_file(4 * fixture.page), other = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	struct pier_mr *mr = get(fd, fixture.page, 2 * fixture.page);

	(void)state;
	assert_true(other >= 0 && other != fd);
	assert_ptr_equal(get(other, fixture.page + 7, 100), mr);
	put(mr);
	put(mr);
	close(fd);
	mr = get(other, 2 * fixture.page, fixture.page);
	assert_int_equal(pier_mr_iova(mr), fixture.page);
	put(mr);
	/* It leaves the kept region. */
	mr = get(other, 0, fixture.page + 1);
	put(mr);
	close(other);
	assert_int_equal(stats().hits, 2);
	assert_int_equal(stats().misses, 2);
	assert_int_equal(stats().count, 2);
}

static void reused_fd_is_not_a_hit(void **state)
{
	int fd = make_file(fixture.page), other;
	struct pier_mr *mr = get(fd, 0, fixture.page);
	uint32_t key = test_mr_info(mr).rkey;

	(void)state;
	put(mr);
	other = make_file(fixture.page);
	assert_int_equal(dup3(other, fd, O_CLOEXEC), fd);
	mr = get(fd, 0, fixture.page);
	assert_int_not_equal(test_mr_info(mr).rkey, key);
	put(mr);
	close(fd);
	close(other);
	assert_int_equal(stats().hits, 0);
	assert_int_equal(stats().count, 2);
}

static void invalidation_releases_a_dma_buf(void **state)
{
	int fd = make_file(2 * fixture.page), other = make_file(fixture.page);
	struct pier_mr_range range = pier_mr_range_dmabuf(fd, fixture.page, 1);
	struct pier_mr *mr = get(fd, 0, fixture.page + 1);

	(void)state;
	put(get(other, 0, fixture.page));
	/* Addresses are no offsets. */
	expect_ok(test_cache_invalidate(fixture.cache, NULL, SIZE_MAX));
	assert_int_equal(stats().count, 2);
	range.length = 0;
	expect_ok(pier_mr_cache_invalidate(fixture.cache, &range));
	assert_int_equal(stats().count, 2);
	range.length = 1;
	expect_ok(pier_mr_cache_invalidate(fixture.cache, &range));
	assert_int_equal(stats().count, 1);
	assert_int_equal(stats().invalidations, 1);
	assert_int_equal(pier_object_count(PIER_OBJECT_MR), 2);
	put(mr);
	assert_int_equal(pier_object_count(PIER_OBJECT_MR), 1);
	close(fd);
	close(other);
}

static void mistakes_are_refused(void **state)
{
	int fd = make_file(fixture.page);
	const struct {
		struct pier_mr_range range;
		int error;
	} cases[] = {
		{ pier_mr_range_dmabuf(-1, 0, 1), -EBADF },
		{ pier_mr_range_dmabuf(fd, 0, 0), -EINVAL },
		{ pier_mr_range_dmabuf(fd, INT64_MAX, 1), -EINVAL },
		{ pier_mr_range_dmabuf(fd, UINT64_MAX, 1), -EINVAL },
		{ pier_mr_range_dmabuf(fd, fixture.page, 1), -EINVAL },
		{ { .source = 9, .fd = -1, .length = 1 }, -EINVAL },
	};
	struct pier_mr *mr = (struct pier_mr *)0x1;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		expect_result(pier_mr_cache_get(fixture.cache, &cases[i].range,
						PIER_ACCESS_SHARED, &mr),
			      cases[i].error);
	expect_result(pier_mr_cache_get(fixture.cache, NULL, 0, &mr), -EINVAL);
	expect_result(pier_mr_cache_invalidate(fixture.cache, NULL), -EINVAL);
	expect_result(pier_mr_cache_invalidate(fixture.cache, &cases[0].range), -EBADF);
	assert_ptr_equal(mr, (void *)0x1);
	assert_int_equal(stats().count, 0);
	close(fd);
}

/* The number that stands for a file: as in src/region/cache/cache.c. */
static uint64_t find_base(int fd)
{
	struct stat file;

	assert_int_equal(fstat(fd, &file), 0);
	return file.st_ino * UINT64_C(0x9e3779b97f4a7c15) >> 1;
}

/* The ranges of two dma-bufs meet in the index. Each gets its own region all the same. */
static void colliding_dma_bufs_are_told_apart(void **state)
{
	int low = make_file(fixture.page), high = make_file(fixture.page), swap;
	uint64_t offset;

	(void)state;
	if (find_base(low) > find_base(high)) {
		swap = low;
		low = high;
		high = swap;
	}
	offset = (find_base(high) - find_base(low)) & ~((uint64_t)fixture.page - 1);
	assert_int_equal(ftruncate(low, (off_t)(offset + 2 * fixture.page)), 0);
	for (int round = 0; round < 2; round++) {
		struct pier_mr *inner = get(high, 0, fixture.page), *outer;

		outer = get(low, offset, 2 * fixture.page);
		assert_int_equal(pier_mr_iova(inner), 0);
		assert_int_equal(pier_mr_iova(outer), offset);
		assert_int_not_equal(test_mr_info(inner).rkey, test_mr_info(outer).rkey);
		put(inner);
		put(outer);
	}
	/* They did meet: the outer one, once kept, hid the inner one. */
	assert_int_equal(stats().hits, 1);
	assert_int_equal(stats().misses, 3);
	close(low);
	close(high);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, begin_test, end_test)
	const struct CMUnitTest tests[] = {
		CASE(any_fd_of_a_dma_buf_hits),		 CASE(reused_fd_is_not_a_hit),
		CASE(invalidation_releases_a_dma_buf),	 CASE(mistakes_are_refused),
		CASE(colliding_dma_bufs_are_told_apart),
	};

	return cmocka_run_group_tests_name("cache_dmabufs", tests, NULL, NULL);
}
