/* SPDX-License-Identifier: BSD-3-Clause */
#include "cache_fixture.h"
#include "tests/support/plugins.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <pier/backend.h>
#include <pier/buffer.h>

static char folder[] = "/tmp/pier-unit-XXXXXX";

/* Memory of backends: which backend owns it, and what happens when it is freed. */

static struct pier_buffer *alloc(const char *spec, size_t length)
{
	struct pier_buffer *buffer = NULL;

	expect_ok(pier_buffer_alloc(spec, length, &buffer));
	return buffer;
}

static char *pointer_of(struct pier_buffer *buffer)
{
	void *pointer = NULL;

	expect_ok(pier_buffer_map(buffer, &pointer));
	return pointer;
}

static void finds_regions_of_buffers(void **state)
{
	static const char *const specs[] = { "host", "memfd" };

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct pier_buffer *buffer;
		struct pier_mr *mr;

		fixture_start(NULL);
		buffer = alloc(specs[i], 3 * fixture.page);
		mr = fixture_get_buffer(buffer, 10, fixture.page, PIER_ACCESS_SHARED);
		assert_ptr_equal(fixture_get_buffer(buffer, 20, 5, PIER_ACCESS_SHARED),
				 mr);
		/* The same memory, by pointer. */
		assert_ptr_equal(fixture_get(pointer_of(buffer) + 30, 5, 0), mr);
		assert_int_equal(fixture_stats().hits, 2);
		for (int j = 0; j < 3; j++)
			fixture_put(mr);
		expect_ok(pier_buffer_free(buffer));
		assert_int_equal(atomic_load(&fixture.live), 0);
		fixture_end();
	}
}

static void refuses_invalid_buffer_requests(void **state)
{
	struct pier_mr *mr = (struct pier_mr *)0x1;
	struct pier_buffer *buffer;

	(void)state;
	fixture_start(NULL);
	buffer = alloc("host", 100);
	expect_result(test_cache_get_buffer(fixture.cache, NULL, 0, 1, 1, &mr), -EINVAL);
	expect_result(test_cache_get_buffer(fixture.cache, buffer, 0, 0, 1, &mr),
		      -EINVAL);
	expect_result(test_cache_get_buffer(fixture.cache, buffer, 50, 51, 1, &mr),
		      -ERANGE);
	expect_result(test_cache_get_buffer(fixture.cache, buffer, SIZE_MAX, 2, 1, &mr),
		      -ERANGE);
	expect_result(test_cache_get_buffer(fixture.cache, buffer, 0, 1, 2, &mr),
		      -EINVAL);
	assert_ptr_equal(mr, (void *)0x1);
	expect_ok(pier_buffer_free(buffer));
	fixture_end();
}

/* A region in use keeps the buffer busy. An idle one goes first, then the buffer. */
static void check_free(const char *spec, bool by_pointer)
{
	struct pier_buffer *buffer;
	struct pier_mr *mr;
	char *memory;

	fixture_start(NULL);
	buffer = alloc(spec, 2 * fixture.page);
	memory = pointer_of(buffer);
	mr = by_pointer ? fixture_get(memory + 7, 100, 1)
			: fixture_get_buffer(buffer, 7, 100, 1);
	expect_result(pier_buffer_free(buffer), -EBUSY);
	test_assert_sentence("handed out a region of its memory");
	/* Nothing was changed. */
	assert_ptr_equal(fixture_get(memory + 7, 1, 1), mr);
	fixture_put(mr);
	expect_result(pier_buffer_free(buffer), -EBUSY);
	fixture_put(mr);
	assert_int_equal(atomic_load(&fixture.live), 1);
	expect_ok(pier_buffer_free(buffer));
	assert_int_equal(atomic_load(&fixture.live), 0);
	assert_int_equal(fixture_stats().count, 0);
	fixture_end();
}

static void free_drops_idle_regions(void **state)
{
	(void)state;
	check_free("host", false);
	check_free("memfd", false);
	check_free("memfd", true);
}

/* The memory is gone too: a wrapped pointer had kept it. */
static void freed_memory_is_released(void **state)
{
	struct pier_buffer *buffer, *wrapped;
	char *memory;

	(void)state;
	fixture_start(NULL);
	buffer = alloc("memfd", fixture.page);
	memory = pointer_of(buffer);
	fixture_touch(memory, 100, 1);
	expect_ok(pier_buffer_free(buffer));
	expect_ok(pier_buffer_wrap(memory, 1, &wrapped));
	assert_string_equal(test_buffer_info(wrapped).backend, "host");
	expect_ok(pier_buffer_free(wrapped));
	fixture_end();
}

/* Two caches keep it, one of them in use: busy until that one is put. */
static void free_drops_regions_of_two_caches(void **state)
{
	struct pier_mr_cache *other;
	struct pier_buffer *buffer;
	struct pier_mr *mr;

	(void)state;
	fixture_start(NULL);
	expect_ok(pier_mr_cache_create(&fixture.pd, NULL, &other));
	buffer = alloc("memfd", fixture.page);
	fixture_put(fixture_get_buffer(buffer, 0, 100, 1));
	expect_ok(test_cache_get_buffer(other, buffer, 0, 100, 1, &mr));
	expect_result(pier_buffer_free(buffer), -EBUSY);
	expect_ok(pier_mr_cache_put(other, mr));
	expect_ok(pier_buffer_free(buffer));
	assert_int_equal(atomic_load(&fixture.live), 0);
	expect_ok(pier_mr_cache_destroy(other));
	fixture_end();
}

/* A region that could not be deregistered keeps its buffer busy. */
static void stuck_region_keeps_its_buffer(void **state)
{
	struct pier_buffer *buffer;

	(void)state;
	fixture_start(NULL);
	buffer = alloc("memfd", fixture.page);
	fixture_put(fixture_get_buffer(buffer, 0, 100, 1));
	atomic_store(&fixture.sticks, 1);
	expect_result(pier_buffer_free(buffer), -EBUSY);
	expect_ok(pier_mr_cache_flush(fixture.cache));
	expect_ok(pier_buffer_free(buffer));
	fixture_end();
}

/* While another thread deregisters the region, freeing waits and does not report busy. */
static struct pier_buffer *waiting;
static pthread_t freeing;
static atomic_int begun, result;

enum {
	NO_RESULT = 1,
	LOOKS = 20000, /* wait this long for an event that must not come */
};

static void *free_waiting(void *argument)
{
	(void)argument;
	atomic_store(&begun, 1);
	atomic_store(&result, pier_buffer_free(waiting));
	return NULL;
}

static void free_meanwhile(void *addr)
{
	(void)addr;
	fixture.on_deregister = NULL;
	pthread_create(&freeing, NULL, free_waiting, NULL);
	while (!atomic_load(&begun))
		sched_yield();
	for (int i = 0; i < LOOKS && atomic_load(&result) == NO_RESULT; i++)
		sched_yield();
	assert_int_equal(atomic_load(&result), NO_RESULT);
}

static void free_waits_for_a_deregistration(void **state)
{
	(void)state;
	fixture_deadline(60);
	fixture_start(NULL);
	waiting = alloc("memfd", fixture.page);
	fixture_put(fixture_get_buffer(waiting, 0, 100, 1));
	atomic_store(&begun, 0);
	atomic_store(&result, NO_RESULT);
	fixture.on_deregister = free_meanwhile;
	expect_ok(pier_mr_cache_flush(fixture.cache));
	pthread_join(freeing, NULL);
	assert_int_equal(atomic_load(&result), 0);
	fixture_end();
	fixture_deadline(0);
}

/* The time for the other thread is over at once. */
static atomic_bool late;

int __real_pier_clock_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline);
int __wrap_pier_clock_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline);

int __wrap_pier_clock_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline)
{
	return atomic_load(&late) ? ETIMEDOUT
				  : __real_pier_clock_wait(cond, lock, deadline);
}

static void free_in_vain(void *addr)
{
	(void)addr;
	fixture.on_deregister = NULL;
	atomic_store(&late, true);
	pthread_create(&freeing, NULL, free_waiting, NULL);
	pthread_join(freeing, NULL);
	atomic_store(&late, false);
}

static void free_reports_busy_while_another_thread_deregisters(void **state)
{
	(void)state;
	fixture_start(NULL);
	waiting = alloc("memfd", fixture.page);
	fixture_put(fixture_get_buffer(waiting, 0, 100, 1));
	fixture.on_deregister = free_in_vain;
	expect_ok(pier_mr_cache_flush(fixture.cache));
	assert_int_equal(atomic_load(&result), -EBUSY);
	expect_ok(pier_buffer_free(waiting));
	fixture_end();
}

/* Regions of wrapped memory go with the buffer that wraps it. */
static void free_drops_regions_of_wrapped_memory(void **state)
{
	struct pier_buffer *buffer;
	char *memory;

	(void)state;
	fixture_start(NULL);
	memory = fixture_map(2, 1);
	expect_ok(pier_buffer_wrap(memory, 2 * fixture.page, &buffer));
	fixture_put(fixture_get_buffer(buffer, 10, 10, 1));
	assert_int_equal(fixture_stats().count, 1);
	assert_int_equal(fixture_stats().watched, 0);
	expect_ok(pier_buffer_free(buffer));
	assert_int_equal(fixture_stats().count, 0);
	munmap(memory, 2 * fixture.page);
	fixture_end();
}

/* Regions of the same memory that are not of the buffer: it neither needs nor ends them.
 */
static void free_of_a_wrapper_leaves_other_regions(void **state)
{
	struct pier_mr_cache_attr attr;
	struct pier_buffer *buffer, *other;
	struct pier_mr *mr;
	char *memory;

	(void)state;
	pier_mr_cache_attr_init(&attr);
	attr.flags = PIER_MR_CACHE_UNWATCHED;
	fixture_start(&attr);
	memory = fixture_map(2, 1);
	mr = fixture_get(memory, 2 * fixture.page, 1);
	expect_ok(pier_buffer_wrap(memory, 2 * fixture.page, &buffer));
	expect_ok(pier_buffer_wrap(memory, 2 * fixture.page, &other));
	expect_ok(pier_buffer_free(other));
	fixture_put(mr);
	expect_ok(pier_buffer_free(buffer));
	assert_ptr_equal(fixture_get(memory, 1, 1), mr);
	fixture_put(mr);
	assert_int_equal(fixture_stats().invalidations, 0);
	munmap(memory, 2 * fixture.page);
	fixture_end();
}

/* The last buffer on the memory of a memfd wraps it: kept regions do not keep it. */
static void free_of_a_wrapper_can_free_the_memory(void **state)
{
	struct pier_buffer *buffer, *wrapped;
	struct pier_mr *mr;
	char *memory;

	(void)state;
	for (int idle = 0; idle < 2; idle++) {
		fixture_start(NULL);
		buffer = alloc("memfd", fixture.page);
		memory = pointer_of(buffer);
		expect_ok(pier_buffer_wrap(memory, fixture.page, &wrapped));
		expect_ok(pier_buffer_free(buffer));
		mr = fixture_get(memory, 100, 1);
		if (idle)
			fixture_put(mr);
		expect_ok(pier_buffer_free(wrapped));
		assert_int_equal(fixture_stats().count, 0);
		assert_int_equal(atomic_load(&fixture.live), !idle);
		if (!idle)
			fixture_put(mr);
		assert_int_equal(atomic_load(&fixture.live), 0);
		fixture_end();
	}
}

static void new_allocation_is_not_a_hit(void **state)
{
	struct pier_buffer *first, *second;
	struct pier_mr *mr;
	char *memory;

	(void)state;
	fixture_start(NULL);
	first = alloc("reuse", 10000);
	memory = pointer_of(first);
	fixture_tag(memory, 2, 1);
	mr = fixture_get(memory, 10000, 1);
	assert_ptr_equal(fixture_get(memory + 100, 10, 1), mr);
	fixture_put(mr);
	assert_int_equal(fixture_stats().hits, 1);

	second = alloc("reuse", 10000); /* the first region is gone */
	fixture_tag(memory, 2, 2);
	fixture_touch(memory + 100, 10, 1);
	assert_int_equal(fixture_stats().hits, 1);
	assert_int_equal(fixture_stats().misses, 2);
	assert_int_equal(fixture_stats().invalidations, 1);
	/* The region was in use, so it was deregistered when it was put. */
	assert_int_equal(atomic_load(&fixture.live), 2);
	fixture_put(mr);
	assert_int_equal(atomic_load(&fixture.live), 1);
	mr = fixture_get(memory + 100, 10, 1);
	assert_true(fixture_is_fresh(mr));
	assert_int_equal(fixture_stats().hits, 2);
	fixture_put(mr);
	expect_ok(pier_buffer_free(first));
	expect_ok(pier_buffer_free(second));
	fixture_end();
}

static void revoke_by_plugin(uint64_t address, uint64_t length)
{
	void (*revoke)(uint64_t address, uint64_t length);
	char path[128];
	void *object;

	snprintf(path, sizeof(path), "%s/nameless.so", folder);
	object = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
	assert_non_null(object);
	*(void **)&revoke = dlsym(object, "reuse_revoke");
	assert_non_null(revoke);
	revoke(address, length);
	dlclose(object);
}

/*
 * A backend without allocation numbers: idle regions go at once, others when they are
 * put.
 */
static void revocation_drops_overlapping_regions(void **state)
{
	struct pier_mr *used, *idle;
	struct pier_buffer *buffer;
	char *memory;

	(void)state;
	fixture_start(NULL);
	buffer = alloc("nameless", 3 * fixture.page);
	memory = pointer_of(buffer);
	used = fixture_get_buffer(buffer, 0, fixture.page, 1);
	idle = fixture_get_buffer(buffer, fixture.page, fixture.page, 1);
	fixture_put(idle);
	assert_int_equal(atomic_load(&fixture.live), 2);
	/* Behind the idle one. */
	pier_backend_revoke((uint64_t)(uintptr_t)memory + 2 * fixture.page, fixture.page);
	assert_int_equal(fixture_stats().invalidations, 0);
	revoke_by_plugin((uint64_t)(uintptr_t)memory + fixture.page - 1, 2);
	assert_int_equal(fixture_stats().invalidations, 2);
	assert_int_equal(atomic_load(&fixture.live), 1);
	fixture_put(used);
	assert_int_equal(atomic_load(&fixture.live), 0);
	fixture_touch(memory, 1, 1);
	assert_int_equal(fixture_stats().hits, 0);
	expect_ok(pier_buffer_free(buffer));
	fixture_end();
}

/* Each segment has a number of its own, and the region is as good as all of them. */
static void range_of_several_segments_is_kept(void **state)
{
	enum {
		HALF = 32 << 10 /* a segment of "reuse" */
	};
	struct pier_buffer *buffer;
	char *memory;

	(void)state;
	fixture_start(NULL);
	buffer = alloc("reuse", 2 * HALF);
	memory = pointer_of(buffer);
	fixture_touch(memory + HALF - 10, 10, 1);
	fixture_touch(memory + HALF, 10, 1);
	assert_int_equal(fixture_stats().count, 2);
	fixture_touch(memory + HALF - 10, 11, 1);
	fixture_touch(memory + HALF - 10, 11, 1);
	assert_int_equal(fixture_stats().hits, 1);
	assert_int_equal(fixture_stats().misses, 3);
	assert_int_equal(fixture_stats().uncached, 0);
	expect_ok(pier_buffer_free(buffer));
	fixture_end();
}

/* Replaced during registration: the cache knows it by the earlier number. */
static void replace(void *addr)
{
	struct pier_buffer *buffer = alloc("reuse", 1);

	(void)addr;
	fixture.on_register = NULL;
	expect_ok(pier_buffer_free(buffer));
}

static void allocation_replaced_while_registering(void **state)
{
	struct pier_buffer *buffer;
	char *memory;

	(void)state;
	fixture_start(NULL);
	buffer = alloc("reuse", 100);
	memory = pointer_of(buffer);
	fixture.on_register = replace;
	fixture_touch(memory, 100, 1);
	fixture_touch(memory, 100, 1);
	assert_int_equal(fixture_stats().hits, 0);
	assert_int_equal(fixture_stats().misses, 2);
	fixture_touch(memory, 100, 1);
	assert_int_equal(fixture_stats().hits, 1);
	expect_ok(pier_buffer_free(buffer));
	fixture_end();
}

/*
 * A backend that can neither identify allocations nor hold them is not cached by pointer.
 */
static void unidentified_memory_is_not_cached(void **state)
{
	struct pier_mr_cache_attr attr;

	pier_mr_cache_attr_init(&attr);
	(void)state;
	for (int by_hand = 0; by_hand < 2; by_hand++) {
		struct pier_buffer *buffer;
		char *memory;

		attr.flags = by_hand ? PIER_MR_CACHE_UNWATCHED : 0;
		fixture_start(&attr);
		buffer = alloc("nameless", 100);
		memory = pointer_of(buffer);
		fixture_touch(memory, 100, 1);
		fixture_touch(memory, 100, 1);
		assert_int_equal(fixture_stats().hits, by_hand);
		assert_int_equal(fixture_stats().unwatched, by_hand ? 0 : 2);
		/* As a buffer, pier frees it. */
		fixture_put(fixture_get_buffer(buffer, 0, 100, 1));
		fixture_put(fixture_get_buffer(buffer, 0, 100, 1));
		assert_int_equal(fixture_stats().hits, by_hand ? 3 : 1);
		expect_ok(pier_buffer_free(buffer));
		assert_int_equal(atomic_load(&fixture.live), 0);
		fixture_end();
	}
}

/* Plugins in the folder; see test_make_liar(). */
static int make_folder(void **state)
{
	(void)state;
	if (!mkdtemp(folder))
		return -1;
	test_link_plugin(folder, "reuse");
	test_link_plugin(folder, "nameless");
	return setenv("PIER_BACKEND_PATH", folder, 1);
}

static int remove_folder(void **state)
{
	char link[128];

	(void)state;
	snprintf(link, sizeof(link), "%s/reuse.so", folder);
	if (unlink(link))
		return -1;
	snprintf(link, sizeof(link), "%s/nameless.so", folder);
	return unlink(link) || rmdir(folder);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(finds_regions_of_buffers),
		cmocka_unit_test(refuses_invalid_buffer_requests),
		cmocka_unit_test(free_drops_idle_regions),
		cmocka_unit_test(freed_memory_is_released),
		cmocka_unit_test(free_drops_regions_of_two_caches),
		cmocka_unit_test(stuck_region_keeps_its_buffer),
		cmocka_unit_test(free_waits_for_a_deregistration),
		cmocka_unit_test(free_reports_busy_while_another_thread_deregisters),
		cmocka_unit_test(free_drops_regions_of_wrapped_memory),
		cmocka_unit_test(free_of_a_wrapper_leaves_other_regions),
		cmocka_unit_test(free_of_a_wrapper_can_free_the_memory),
		cmocka_unit_test(new_allocation_is_not_a_hit),
		cmocka_unit_test(range_of_several_segments_is_kept),
		cmocka_unit_test(allocation_replaced_while_registering),
		cmocka_unit_test(unidentified_memory_is_not_cached),
		cmocka_unit_test(revocation_drops_overlapping_regions),
	};

	return cmocka_run_group_tests_name("cache_buffers", tests, make_folder,
					   remove_folder);
}
