/* SPDX-License-Identifier: BSD-3-Clause */
#include "cache_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <malloc.h>
#include <stdlib.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/*
 * Host memory of the program: memory that was freed and mapped again is registered anew.
 */

enum {
	PAGES = 8,
	OLD = 0x01d,
	NEW = 0x2e3,
};

static void start(void)
{
	fixture_deadline(60);
	fixture_start(NULL);
	fixture_need_watch();
}

static void end(void)
{
	fixture_end();
	fixture_deadline(0);
}

/*
 * Register and keep pages, then let `change` replace them at the same address. The next
 * request must get a region of the new pages, not a hit.
 */
static void check_change(void (*change)(char *memory))
{
	struct pier_mr *mr;
	char *memory;

	start();
	memory = fixture_map(PAGES, OLD);
	fixture_touch(memory, PAGES * fixture.page, PIER_ACCESS_SHARED);
	fixture_touch(memory + fixture.page, 5, 1);
	assert_int_equal(fixture_stats().hits, 1);
	assert_int_equal(fixture_stats().watched, 1);
	assert_int_equal(fixture_stats().count, 1);
	change(memory);
	fixture_tag(memory, PAGES, NEW);
	mr = fixture_get(memory, PAGES * fixture.page, PIER_ACCESS_SHARED);
	assert_true(fixture_is_fresh(mr));
	assert_int_equal(fixture_stats().hits, 1);
	assert_int_equal(fixture_stats().invalidations, 1);
	/* The old region is deregistered without a further request. */
	fixture_await_live(1);
	fixture_put(mr);
	assert_ptr_equal(fixture_get(memory, PAGES * fixture.page, PIER_ACCESS_SHARED),
			 mr);
	fixture_put(mr);
	munmap(memory, PAGES * fixture.page);
	fixture_await_live(0);
	assert_int_equal(fixture_stats().count, 0);
	assert_int_equal(fixture_stats().watched, 0);
	end();
}

static void put_at(char *memory, int flags)
{
	assert_ptr_equal(mmap(memory, PAGES * fixture.page, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0),
			 memory);
}

static void unmap_and_map(char *memory)
{
	munmap(memory, PAGES * fixture.page);
	put_at(memory, MAP_FIXED_NOREPLACE);
}

static void unmap_last_page(char *memory)
{
	munmap(memory + (PAGES - 1) * fixture.page, fixture.page);
	assert_ptr_not_equal(mmap(memory + (PAGES - 1) * fixture.page, fixture.page,
				  PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
			     MAP_FAILED);
}

static void map_over(char *memory)
{
	put_at(memory, MAP_FIXED);
}

static void empty_by_dontneed(char *memory)
{
	assert_int_equal(madvise(memory, PAGES * fixture.page, MADV_DONTNEED), 0);
}

static void empty_by_free(char *memory)
{
	assert_int_equal(madvise(memory + fixture.page, fixture.page, MADV_FREE), 0);
}

static void *moved;

static void move_away(char *memory)
{
	moved = mremap(memory, PAGES * fixture.page, 2 * PAGES * fixture.page,
		       MREMAP_MAYMOVE);
	assert_ptr_not_equal(moved, MAP_FAILED);
	if (moved == memory) { /* it grew in place: force it to move */
		void *place = mmap(NULL, 2 * PAGES * fixture.page, PROT_NONE,
				   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		moved = mremap(memory, 2 * PAGES * fixture.page, 2 * PAGES * fixture.page,
			       MREMAP_MAYMOVE | MREMAP_FIXED, place);
	}
	assert_ptr_not_equal(moved, memory);
	put_at(memory, MAP_FIXED_NOREPLACE);
	munmap(moved, 2 * PAGES * fixture.page);
}

static void move_pages_alone(char *memory)
{
	moved = mremap(memory, PAGES * fixture.page, PAGES * fixture.page,
		       MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
	assert_ptr_not_equal(moved, MAP_FAILED);
	munmap(moved, PAGES * fixture.page);
}

static void move_onto(char *memory)
{
	char *other = fixture_map(PAGES, NEW);

	assert_ptr_equal(mremap(other, PAGES * fixture.page, PAGES * fixture.page,
				MREMAP_MAYMOVE | MREMAP_FIXED, memory),
			 memory);
}

static void shrink(char *memory)
{
	assert_ptr_equal(mremap(memory, PAGES * fixture.page, fixture.page, 0), memory);
	assert_ptr_not_equal(mmap(memory + fixture.page, (PAGES - 1) * fixture.page,
				  PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
			     MAP_FAILED);
}

#define CHANGE_TEST(change, name)      \
	static void name(void **state) \
	{                              \
		(void)state;           \
		check_change(change);  \
	}
CHANGE_TEST(unmap_and_map, remapped_pages_are_registered_anew)
CHANGE_TEST(unmap_last_page, unmapping_the_last_page_is_noticed)
CHANGE_TEST(map_over, mapping_over_pages_is_noticed)
CHANGE_TEST(empty_by_dontneed, madvise_dontneed_is_noticed)
CHANGE_TEST(empty_by_free, madvise_free_is_noticed)
CHANGE_TEST(move_away, moving_memory_away_is_noticed)
CHANGE_TEST(move_pages_alone, moving_pages_alone_is_noticed)
CHANGE_TEST(move_onto, moving_memory_onto_pages_is_noticed)
CHANGE_TEST(shrink, shrinking_a_mapping_is_noticed)

static void moving_the_break_is_noticed(void **state)
{
	struct pier_mr *mr;
	char *first, *memory;

	(void)state;
	start();
	mallopt(M_MMAP_THRESHOLD, 1); /* malloc(3) leaves the break alone */
	first = sbrk((intptr_t)((PAGES + 1) * fixture.page));
	assert_ptr_not_equal(first, (void *)-1);
	memory = (char *)(((uintptr_t)first + fixture.page - 1) / fixture.page *
			  fixture.page);
	fixture_tag(memory, PAGES, OLD);
	fixture_touch(memory, PAGES * fixture.page, 1);
	assert_int_equal(fixture_stats().watched, 1);
	assert_ptr_not_equal(sbrk(-(intptr_t)((PAGES + 1) * fixture.page)), (void *)-1);
	assert_ptr_equal(sbrk((intptr_t)((PAGES + 1) * fixture.page)), first);
	fixture_tag(memory, PAGES, NEW);
	mr = fixture_get(memory, PAGES * fixture.page, 1);
	assert_true(fixture_is_fresh(mr));
	assert_int_equal(fixture_stats().hits, 0);
	fixture_put(mr);
	assert_ptr_not_equal(sbrk(-(intptr_t)((PAGES + 1) * fixture.page)), (void *)-1);
	mallopt(M_MMAP_THRESHOLD, 128 << 10);
	end();
}

/* Memory that malloc(3) hands out repeatedly, usually at the same address. */
static void heap_reuse_is_noticed(void **state)
{
	enum {
		LENGTH = 1 << 20,
		ROUNDS = 200
	};
	uint64_t tag = 1;
	int same = 0;
	void *last = NULL;

	(void)state;
	start();
	mallopt(M_MMAP_THRESHOLD, 64 << 10);
	for (int i = 0; i < ROUNDS; i++) {
		char *memory = malloc(LENGTH);
		size_t slack = fixture.page - (uintptr_t)memory % fixture.page;
		struct pier_mr *mr;

		same += memory == last;
		last = memory;
		fixture_tag(memory + slack, LENGTH / fixture.page - 1, tag++);
		mr = fixture_get(memory + slack, LENGTH - fixture.page,
				 PIER_ACCESS_SHARED);
		assert_true(fixture_is_fresh(mr));
		fixture_put(mr);
		fixture_touch(memory + slack, 100, 1);
		free(memory);
	}
	assert_int_equal(fixture_stats().misses, ROUNDS);
	assert_int_equal(fixture_stats().hits, ROUNDS);
#ifndef __SANITIZE_ADDRESS__ /* which keeps freed memory for a while */
	assert_true(same > 0);
	fixture_await_live(0);
#endif
	end();
}

/* In use when its memory goes: not handed out again, and deregistered when put. */
static void region_in_use_is_deregistered_when_put(void **state)
{
	struct pier_mr *old, *fresh;
	char *memory;

	(void)state;
	start();
	memory = fixture_map(PAGES, OLD);
	old = fixture_get(memory, PAGES * fixture.page, 1);
	unmap_and_map(memory);
	fixture_tag(memory, PAGES, NEW);
	fresh = fixture_get(memory, PAGES * fixture.page, 1);
	assert_ptr_not_equal(fresh, old);
	assert_true(fixture_is_fresh(fresh));
	assert_int_equal(atomic_load(&fixture.live), 2);
	assert_int_equal(fixture_stats().in_use, 2);
	fixture_put(old);
	assert_int_equal(atomic_load(&fixture.live), 1);
	assert_ptr_equal(fixture_get(memory, 1, 1), fresh);
	fixture_put(fresh);
	fixture_put(fresh);
	munmap(memory, PAGES * fixture.page);
	end();
}

/*
 * After the kernel takes memory away, another thread can get the same addresses before
 * the listener reads the event.
 */
static void *unmap_it(void *memory)
{
	munmap(memory, PAGES * fixture.page);
	return NULL;
}

static void await_unmapped(char *memory)
{
	unsigned char present[PAGES];

	while (mincore(memory, PAGES * fixture.page, present) == 0)
		sched_yield();
}

static void remapping_before_the_event_is_read(void **state)
{
	pthread_t other;
	struct pier_mr *mr;
	char *memory;

	(void)state;
	start();
	memory = fixture_map(PAGES, OLD);
	fixture_touch(memory, PAGES * fixture.page, 1);
	pier_watch_pause();
	assert_int_equal(pthread_create(&other, NULL, unmap_it, memory), 0);
	await_unmapped(memory);
	put_at(memory, MAP_FIXED_NOREPLACE);
	fixture_tag(memory, PAGES, NEW);
	mr = fixture_get(memory, PAGES * fixture.page, 1);
	assert_true(fixture_is_fresh(mr));
	assert_int_equal(fixture_stats().hits, 0);
	/* Not kept, since the event may refer to it. */
	assert_int_equal(fixture_stats().uncached, 1);
	pier_watch_resume();
	pthread_join(other, NULL);
	fixture_put(mr);
	fixture_await_live(0);
	fixture_touch(memory, PAGES * fixture.page, 1);
	fixture_touch(memory, PAGES * fixture.page, 1);
	assert_int_equal(fixture_stats().hits, 1);
	munmap(memory, PAGES * fixture.page);
	end();
}

/* Pages of two regions stay watched until both are gone. */
static void pages_of_two_regions_stay_watched(void **state)
{
	struct pier_mr_cache *cache = NULL;
	struct pier_mr *mr;
	char *memory;

	(void)state;
	start();
	expect_ok(pier_mr_cache_create(&fixture.pd, NULL, &cache));
	memory = fixture_map(PAGES, OLD);
	fixture_touch(memory, fixture.page + 10, 1);
	fixture_touch(memory + fixture.page + 100, 10, 1);
	/* The other cache of this process, which watches the same pages. */
	expect_ok(test_cache_get(cache, memory, 3 * fixture.page, 1, &mr));
	expect_ok(pier_mr_cache_put(cache, mr));
	expect_ok(pier_mr_cache_destroy(cache));
	fixture.on_register = NULL;
	assert_int_equal(fixture_stats().count, 2);
	expect_ok(test_cache_invalidate(fixture.cache, memory, 10));
	assert_int_equal(fixture_stats().count, 1);
	madvise(memory + fixture.page, fixture.page, MADV_DONTNEED);
	assert_int_equal(fixture_stats().count, 0);
	fixture_await_live(0);
	munmap(memory, PAGES * fixture.page);
	end();
}

/* A userfaultfd of the program itself, or -1 if it cannot have one. */
static int own_userfaultfd(char *memory)
{
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | 1);
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register range = {
		.range = { (uintptr_t)memory, PAGES * fixture.page },
		.mode = UFFDIO_REGISTER_MODE_WP,
	};

	assert_int_equal(ioctl(fd, UFFDIO_API, &api), 0);
	if (ioctl(fd, UFFDIO_REGISTER, &range) == 0)
		return fd;
	close(fd);
	return -1;
}

static void check_unwatched(char *memory, uint64_t before)
{
	fixture_touch(memory, 100, 0);
	fixture_touch(memory, 100, 0);
	assert_int_equal(fixture_stats().unwatched, before + 2);
	assert_int_equal(fixture_stats().uncached, before + 2);
	assert_int_equal(fixture_stats().hits, 0);
	assert_int_equal(fixture_stats().count, 0);
	assert_int_equal(fixture_stats().bytes, 0);
}

static void unwatchable_memory_is_not_kept(void **state)
{
	static const char constant[100] = "x";
	char *memory;
	int fd;

	(void)state;
	start();
	/* A mapping of the program's file. */
	check_unwatched((char *)(uintptr_t)constant, 0);
	memory = fixture_map(PAGES, OLD);
	fd = own_userfaultfd(memory);
	assert_true(fd >= 0);
	check_unwatched(memory, 2);
	close(fd);
	fixture_touch(memory, 100, 0);
	fixture_touch(memory, 100, 0);
	assert_int_equal(fixture_stats().hits, 1);
	/* In the other order, only as long as the region is kept. */
	assert_int_equal(own_userfaultfd(memory), -1);
	expect_ok(pier_mr_cache_flush(fixture.cache));
	fd = own_userfaultfd(memory);
	assert_true(fd >= 0);
	close(fd);
	munmap(memory, PAGES * fixture.page);
	end();
}

/* Regions that the parent still holds do not affect the child, and vice versa. */
static void fork_disturbs_neither_process(void **state)
{
	char *memory;
	int pipes[2], status;
	char byte = 0;
	pid_t child;

	(void)state;
	assert_int_equal(pipe(pipes), 0);
	start();
	memory = fixture_map(PAGES, OLD);
	fixture_touch(memory, PAGES * fixture.page, 1);
	/*
	 * Growing in place or moving makes the kernel watch ranges that the cache does
	 * not know.
	 */
	memory = mremap(memory, PAGES * fixture.page, 2 * PAGES * fixture.page,
			MREMAP_MAYMOVE);
	assert_ptr_not_equal(memory, MAP_FAILED);
	child = fork();
	if (child == 0) {
		alarm(30);
		munmap(memory, PAGES * fixture.page);
		close(pipes[1]);
		_exit(read(pipes[0], &byte, 1) == 0 ? 0 : 1); /* outlives the cache */
	}
	end();
	fixture_deadline(30);
	munmap(memory, 2 * PAGES * fixture.page);
	fixture_deadline(0);
	close(pipes[0]);
	close(pipes[1]);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

/* A program with a cache can exit from any thread. */
static void exits_from_any_thread(void **state)
{
	int status;
	pid_t child = fork();

	(void)state;
	if (child == 0) {
		char *memory;

		alarm(30);
		fixture_start(NULL);
		memory = malloc(1 << 20);
		memset(memory, 1, 1 << 20);
		fixture_get(memory, 1 << 20, 1);
		exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

/* Repeated cycles leave no fd, thread or region behind. */
static void cycles_leave_nothing_behind(void **state)
{
	(void)state;
	for (int i = 0; i < 50; i++) {
		char *memory;

		start();
		memory = fixture_map(PAGES, OLD);
		for (size_t page = 0; page < PAGES; page++)
			fixture_touch(memory + page * fixture.page, 10, 1);
		if (i % 2)
			munmap(memory, PAGES * fixture.page);
		end();
		if (i % 2 == 0)
			munmap(memory, PAGES * fixture.page);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(remapped_pages_are_registered_anew),
		cmocka_unit_test(unmapping_the_last_page_is_noticed),
		cmocka_unit_test(mapping_over_pages_is_noticed),
		cmocka_unit_test(madvise_dontneed_is_noticed),
		cmocka_unit_test(madvise_free_is_noticed),
		cmocka_unit_test(moving_memory_away_is_noticed),
		cmocka_unit_test(moving_pages_alone_is_noticed),
		cmocka_unit_test(moving_memory_onto_pages_is_noticed),
		cmocka_unit_test(shrinking_a_mapping_is_noticed),
		cmocka_unit_test(moving_the_break_is_noticed),
		cmocka_unit_test(heap_reuse_is_noticed),
		cmocka_unit_test(region_in_use_is_deregistered_when_put),
		cmocka_unit_test(remapping_before_the_event_is_read),
		cmocka_unit_test(pages_of_two_regions_stay_watched),
		cmocka_unit_test(unwatchable_memory_is_not_kept),
		cmocka_unit_test(fork_disturbs_neither_process),
		cmocka_unit_test(exits_from_any_thread),
		cmocka_unit_test(cycles_leave_nothing_behind),
	};

	unsetenv("PIER_BACKEND_PATH");
	return cmocka_run_group_tests_name("cache_watch", tests, NULL, NULL);
}
