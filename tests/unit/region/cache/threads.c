/* SPDX-License-Identifier: BSD-3-Clause */
#include "cache_fixture.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

/* All operations at once. A deadlock is a failure: the alarm ends the program. */

enum {
	THREADS = 4,
	ROUNDS = 400,
	PAGES = 4,
	COMMON = 16, /* regions of memory that stays mapped */
	MOST = 24,
};

static char *common;
static atomic_int stale, failed;
static atomic_ullong tags;

/* tagged: a thread that has written its tag has mapped the memory anew. */
static void get_and_put_any(char *memory, size_t length, int access, bool tagged)
{
	struct pier_mr *mr;

	if (test_cache_get(fixture.cache, memory, length, access, &mr) != 0) {
		atomic_fetch_add(&failed, 1);
		return;
	}
	if (tagged && !fixture_is_fresh(mr))
		atomic_fetch_add(&stale, 1);
	if (pier_mr_cache_put(fixture.cache, mr) != 0)
		atomic_fetch_add(&failed, 1);
}

static void get_and_put(char *memory, size_t length, int access)
{
	get_and_put_any(memory, length, access, true);
}

/* Like a program that allocates and frees buffers which reuse each other's addresses. */
static void *come_and_go(void *argument)
{
	struct test_random random = { (uint64_t)(uintptr_t)argument };

	for (int i = 0; i < ROUNDS; i++) {
		size_t length = PAGES * fixture.page;
		char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (memory == MAP_FAILED)
			abort();
		fixture_tag(memory, PAGES, atomic_fetch_add(&tags, 1));
		get_and_put(memory, length, 1);
		get_and_put(memory + 10, 100, 1);
		if (test_random_below(&random, 4) == 0) {
			madvise(memory, length, MADV_DONTNEED);
			fixture_tag(memory, PAGES, atomic_fetch_add(&tags, 1));
			get_and_put(memory, length, 1);
		}
		get_and_put(common + test_random_below(&random, COMMON) * fixture.page,
			    100, 1);
		munmap(memory, length);
	}
	return NULL;
}

/*
 * malloc(3) and free(3) may unmap or empty memory at any time. Mostly they do not, and
 * then a hit is right whatever the bytes were.
 */
static void *allocate(void *argument)
{
	struct test_random random = { (uint64_t)(uintptr_t)argument };

	for (int i = 0; i < ROUNDS; i++) {
		size_t length = 1 + test_random_below(&random, 300000);
		char *memory = malloc(length + 2 * fixture.page);
		char *first = (char *)(((uintptr_t)memory / fixture.page + 1) *
				       fixture.page);

		if (!memory)
			abort();
		memset(first, i, length);
		get_and_put_any(first, length, 1, false);
		free(memory);
	}
	return NULL;
}

static void *tell(void *argument)
{
	struct test_random random = { (uint64_t)(uintptr_t)argument };

	for (int i = 0; i < ROUNDS; i++) {
		struct pier_mr_cache_stats stats = fixture_stats();
		size_t page = test_random_below(&random, COMMON);

		if (stats.count > MOST || stats.bytes > MOST * 100000u)
			atomic_fetch_add(&failed, 1);
		if (test_cache_invalidate(fixture.cache, common + page * fixture.page,
					  10))
			atomic_fetch_add(&failed, 1);
		if (i % 50 == 0 && pier_mr_cache_flush(fixture.cache))
			atomic_fetch_add(&failed, 1);
	}
	return NULL;
}

/*
 * Freeing a buffer never fails with busy because of an idle region, whichever thread
 * deregisters it.
 */
static void *free_buffers(void *argument)
{
	(void)argument;
	for (int i = 0; i < ROUNDS; i++) {
		struct pier_buffer *buffer;
		struct pier_mr *mr;

		if (pier_buffer_alloc("memfd", fixture.page, &buffer) ||
		    test_cache_get_buffer(fixture.cache, buffer, 0, 100, 1, &mr) ||
		    pier_mr_cache_put(fixture.cache, mr) || pier_buffer_free(buffer))
			atomic_fetch_add(&failed, 1);
	}
	return NULL;
}

/* Short-lived caches share the watch with the one that stays. */
static void *make_caches(void *argument)
{
	(void)argument;
	for (int i = 0; i < ROUNDS / 10; i++) {
		char *memory = mmap(NULL, fixture.page, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		struct pier_mr_cache *cache;
		struct pier_mr *mr;

		if (pier_mr_cache_create(&fixture.pd, NULL, &cache) ||
		    test_cache_get(cache, memory, 100, 1, &mr) ||
		    pier_mr_cache_put(cache, mr))
			atomic_fetch_add(&failed, 1);
		munmap(memory, fixture.page);
		if (pier_mr_cache_destroy(cache))
			atomic_fetch_add(&failed, 1);
	}
	return NULL;
}

static void start(uint32_t flags)
{
	struct pier_mr_cache_attr attr;

	pier_mr_cache_attr_init(&attr);
	fixture_deadline(100);
	attr.max_count = MOST;
	attr.max_bytes = MOST * 100000;
	attr.flags = flags;
	fixture_start(&attr);
	atomic_store(&stale, 0);
	atomic_store(&failed, 0);
	common = fixture_map(COMMON, 1);
}

static void run(void *(*const *jobs)(void *), size_t count)
{
	pthread_t threads[2 * THREADS];

	for (size_t i = 0; i < count; i++)
		assert_int_equal(
			pthread_create(&threads[i], NULL, jobs[i], (void *)(i + 1)), 0);
	for (size_t i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(atomic_load(&stale), 0);
	assert_int_equal(atomic_load(&failed), 0);
	assert_int_equal(fixture_stats().in_use, 0);
	munmap(common, COMMON * fixture.page);
}

static void survives_all_operations_at_once(void **state)
{
	void *(*const jobs[])(void *) = { come_and_go, come_and_go,  allocate,	 allocate,
					  tell,	       free_buffers, make_caches };

	(void)state;
	start(0);
	fixture_need_watch();
	run(jobs, sizeof(jobs) / sizeof(jobs[0]));
	fixture_end();
	fixture_deadline(0);
}

static void *same_range(void *argument)
{
	(void)argument;
	for (int i = 0; i < ROUNDS; i++) {
		size_t page = (size_t)i / 8 % COMMON;

		get_and_put(common + page * fixture.page, 100, 1);
		if (i % 128 == 0)
			test_cache_invalidate(fixture.cache, common,
					      COMMON * fixture.page);
	}
	return NULL;
}

/* However many threads register the same range at once, one region of it remains. */
static void concurrent_misses_keep_one_region(void **state)
{
	void *(*const jobs[])(void *) = { same_range, same_range, same_range,
					  same_range };

	(void)state;
	start(PIER_MR_CACHE_UNWATCHED);
	run(jobs, sizeof(jobs) / sizeof(jobs[0]));
	assert_true(fixture_stats().count <= COMMON);
	assert_int_equal(atomic_load(&fixture.live), fixture_stats().count);
	fixture_end();
	fixture_deadline(0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(survives_all_operations_at_once),
		cmocka_unit_test(concurrent_misses_keep_one_region),
	};

	unsetenv("PIER_BACKEND_PATH");
	return cmocka_run_group_tests_name("cache_threads", tests, NULL, NULL);
}
