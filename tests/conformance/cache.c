/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../support/memory_of.h"
#include "cases.h"
#include "world.h"

/*
 * Regions of the registration cache. A peer writes through them, and the bytes must
 * arrive in the memory that is mapped now, not in memory mapped before.
 */

enum {
	LENGTH = 40000,
	GUARD = 100, /* bytes before and behind the written ones */
};

static struct pier_mr_cache *make_cache(struct world *world)
{
	struct pier_mr_cache *cache = NULL;

	expect_ok(pier_mr_cache_create(world->b.pd, NULL, &cache));
	return cache;
}

/* The peer writes all of a region except the guards, and the memory has its bytes. */
static void write_through(struct world *world, struct pier_mr *mr, uint8_t *memory)
{
	struct pier_gather source = gather_at(&world->a.area, 0, LENGTH - 2 * GUARD);
	uint64_t offset = (uintptr_t)memory - pier_mr_iova(mr);
	struct pier_remote whole, part;

	expect_ok(pier_mr_remote(mr, &whole));
	expect_ok(pier_remote_sub(&whole, offset + GUARD, LENGTH - 2 * GUARD, &part));
	memset(memory, 0x5a, LENGTH);
	area_shuffle(world, &world->a.area);
	expect_ok(pier_channel_write(world->a.channel, &source, 1, &part, PATIENT));
	assert_memory_equal(memory + GUARD, world->a.area.image, LENGTH - 2 * GUARD);
	for (int i = 0; i < GUARD; i++) {
		assert_int_equal(memory[i], 0x5a);
		assert_int_equal(memory[LENGTH - 1 - i], 0x5a);
	}
}

static void get_and_write(struct world *world, struct pier_mr_cache *cache,
			  uint8_t *memory)
{
	struct pier_mr *mr = NULL;

	expect_ok(test_cache_get(cache, memory, LENGTH, PIER_ACCESS_SHARED, &mr));
	write_through(world, mr, memory);
	expect_ok(pier_mr_cache_put(cache, mr));
}

static uint8_t *map_at(void *place, int flags)
{
	void *memory = mmap(place, LENGTH, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);

	assert_ptr_not_equal(memory, MAP_FAILED);
	return memory;
}

static void reallocated_memory_is_registered_again(void **state)
{
	struct world *world = world_connected(state);
	struct pier_mr_cache *cache = make_cache(world);
	struct pier_mr_cache_stats stats;
	uint8_t *memory = map_at(NULL, 0);

	for (int round = 0; round < 10; round++) {
		get_and_write(world, cache, memory);
		get_and_write(world, cache, memory);
		if (round % 3 == 0)
			map_at(memory, MAP_FIXED);
		else if (round % 3 == 1)
			assert_int_equal(madvise(memory, LENGTH, MADV_DONTNEED), 0);
		else {
			munmap(memory, LENGTH);
			map_at(memory, MAP_FIXED_NOREPLACE);
		}
	}
	pier_mr_cache_query_stats(cache, &stats, sizeof(stats));
	assert_int_equal(stats.hits, stats.watching ? 10 : 0);
	assert_int_equal(stats.count, 0);
	munmap(memory, LENGTH);
	expect_ok(pier_mr_cache_destroy(cache));
}

/* The cache keeps the region after use, but does not prevent freeing the buffer. */
static void cached_buffer_can_be_freed(void **state)
{
	struct world *world = world_connected(state);
	struct pier_mr_cache *cache = make_cache(world);
	struct pier_mr_cache_stats stats;

	for (int round = 0; round < 5; round++) {
		struct pier_buffer *buffer;
		struct pier_mr *first, *again;
		void *memory;

		expect_ok(test_buffer_alloc(world->a.device, test_backend, LENGTH,
					    &buffer));
		expect_ok(test_cache_get_buffer(cache, buffer, 0, LENGTH,
						PIER_ACCESS_SHARED, &first));
		expect_result(pier_buffer_free(buffer), -EBUSY);
		if (pier_buffer_map(buffer, &memory) == 0)
			write_through(world, first, memory);
		expect_ok(pier_mr_cache_put(cache, first));
		expect_ok(test_cache_get_buffer(cache, buffer, 100, 10,
						PIER_ACCESS_LOCAL_WRITE, &again));
		assert_ptr_equal(again, first);
		expect_ok(pier_mr_cache_put(cache, again));
		expect_ok(pier_buffer_free(buffer));
	}
	pier_mr_cache_query_stats(cache, &stats, sizeof(stats));
	assert_int_equal(stats.hits, 5);
	assert_int_equal(stats.misses, 5);
	assert_int_equal(stats.count, 0);
	expect_ok(pier_mr_cache_destroy(cache));
}

static void cache_keeps_its_pd(void **state)
{
	struct world *world = world_opened(state);
	struct end *end = &world->a;
	struct pier_mr_cache *cache = NULL;

	expect_ok(pier_mr_cache_create(end->pd, NULL, &cache));
	expect_ok(area_close(&end->area));
	expect_result(pier_pd_dealloc(end->pd), -EBUSY);
	expect_ok(pier_mr_cache_destroy(cache));
	expect_ok(pier_pd_dealloc(end->pd));
	end->pd = NULL;
}

int run_cache_cases(void)
{
	const struct CMUnitTest cases[] = {
		world_case(reallocated_memory_is_registered_again),
		world_case(cached_buffer_can_be_freed),
		world_case(cache_keeps_its_pd),
	};

	return cmocka_run_group_tests_name("cache", cases, NULL, NULL);
}
