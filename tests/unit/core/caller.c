/* SPDX-License-Identifier: BSD-3-Clause */
/* All objects that a public call creates, directly or indirectly, record its caller. */
#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <pier/pier.h>

#include "core/caller.h"

enum {
	LENGTH = 4096,
	TIME_MS = 30000,
	FIXED = 2, /* objects of the fixture: device and PD */
};

struct fixture {
	struct pier_device *device;
	struct pier_pd *pd;
	struct test_census before;
	char *memory;
};

/* Exported by this program, so that dladdr(3) knows them, and never inlined. */
#define MAKER __attribute__((noinline, visibility("default")))

MAKER struct pier_recv_pool *test_make_pool(struct pier_pd *pd);
MAKER struct pier_ring *test_make_ring(struct pier_pd *pd);
MAKER struct pier_group *test_make_group(struct pier_pd *pd);
MAKER struct pier_mr *test_get_cached(struct pier_mr_cache *cache, void *memory);
MAKER struct pier_registration *test_register_async(struct pier_event_queue *queue,
						    struct pier_pd *pd, void *memory);
MAKER int test_fail_to_make(struct pier_pd *pd);
MAKER struct pier_buffer *test_make_buffer(void);

struct pier_recv_pool *test_make_pool(struct pier_pd *pd)
{
	struct pier_recv_pool *pool = NULL;

	expect_ok(pier_recv_pool_create(pd, NULL, &pool));
	return pool;
}

struct pier_ring *test_make_ring(struct pier_pd *pd)
{
	struct pier_ring *ring = NULL;

	expect_ok(pier_ring_create(pd, NULL, &ring));
	return ring;
}

struct pier_group *test_make_group(struct pier_pd *pd)
{
	struct pier_group *group = NULL;

	expect_ok(pier_group_create(pd, 0, 2, NULL, &group));
	return group;
}

struct pier_mr *test_get_cached(struct pier_mr_cache *cache, void *memory)
{
	struct pier_mr_range range = pier_mr_range_pointer(memory, LENGTH);
	struct pier_mr *mr = NULL;

	expect_ok(pier_mr_cache_get(cache, &range, 0, &mr));
	return mr;
}

struct pier_registration *test_register_async(struct pier_event_queue *queue,
					      struct pier_pd *pd, void *memory)
{
	struct pier_mr_range range = pier_mr_range_pointer(memory, LENGTH);
	struct pier_mr_attr attr;
	struct pier_registration *registration = NULL;

	pier_mr_attr_init(&attr);
	attr.ranges = &range;
	attr.range_count = 1;
	expect_ok(pier_mr_reg_async(queue, pd, &attr, &registration));
	return registration;
}

int test_fail_to_make(struct pier_pd *pd)
{
	struct pier_mr *mr = NULL;
	int error = pier_mr_reg(pd, NULL, 0, 0, &mr);

	assert_null(mr);
	return error;
}

struct pier_buffer *test_make_buffer(void)
{
	struct pier_buffer *buffer = NULL;

	expect_ok(pier_buffer_alloc("host", LENGTH, &buffer));
	return buffer;
}

static int open_fixture(void **state)
{
	struct fixture *fixture = calloc(1, sizeof(*fixture));

	assert_non_null(fixture);
	fixture->before = test_take_census();
	fixture->memory = aligned_alloc(LENGTH, LENGTH);
	assert_non_null(fixture->memory);
	expect_ok(pier_device_open("soft0", &fixture->device));
	expect_ok(pier_pd_alloc(fixture->device, &fixture->pd));
	*state = fixture;
	return 0;
}

static int close_fixture(void **state)
{
	struct fixture *fixture = *state;

	expect_ok(pier_pd_dealloc(fixture->pd));
	expect_ok(pier_device_close(fixture->device));
	test_assert_census(&fixture->before);
	free(fixture->memory);
	free(fixture);
	return 0;
}

/*
 * From entry `first` of the list on there are `count` objects, all created by that call.
 */
static void expect_made_by(const char *maker, size_t first, size_t count)
{
	struct pier_object_info *list = NULL;
	uint32_t total = 0;

	expect_ok(pier_object_list(&list, &total, sizeof(*list)));
	assert_int_equal(total, first + count);
	for (size_t i = first; i < total; i++) {
		Dl_info found = { 0 };

		assert_true(dladdr(list[i].caller, &found) != 0);
		assert_non_null(found.dli_sname);
		assert_string_equal(found.dli_sname, maker);
		assert_ptr_equal(list[i].caller, list[first].caller);
	}
	free(list);
	assert_null(pier_caller);
}

/* The pool, its buffer, its region and its shared receive queue. */
static void parts_of_a_pool_record_its_caller(void **state)
{
	struct fixture *fixture = *state;
	struct pier_recv_pool *pool = test_make_pool(fixture->pd);

	expect_made_by("test_make_pool", FIXED, 4);
	expect_ok(pier_recv_pool_destroy(pool));
}

/* The ring, its buffer and its region. */
static void parts_of_a_ring_record_its_caller(void **state)
{
	struct fixture *fixture = *state;
	struct pier_ring *ring = test_make_ring(fixture->pd);

	expect_made_by("test_make_ring", FIXED, 3);
	expect_ok(pier_ring_destroy(ring));
}

/* The group, its channel to itself, and two channels to the other rank. */
/* The group, its three channels and their completion queue. */
static void channels_of_a_group_record_its_caller(void **state)
{
	struct fixture *fixture = *state;
	struct pier_group *group = test_make_group(fixture->pd);

	expect_made_by("test_make_group", FIXED, 5);
	expect_ok(pier_group_destroy(group));
}

/* The region and the buffer around its memory. */
static void cached_region_records_the_caller_of_the_miss(void **state)
{
	struct fixture *fixture = *state;
	struct pier_mr_cache *cache = NULL;
	struct pier_mr *mr;

	expect_ok(pier_mr_cache_create(fixture->pd, NULL, &cache));
	mr = test_get_cached(cache, fixture->memory);
	expect_made_by("test_get_cached", FIXED + 1, 2);
	expect_ok(pier_mr_cache_put(cache, mr));
	expect_ok(pier_mr_cache_destroy(cache));
}

/* The buffer, the registration, and the region, which a thread of the queue creates. */
static void asynchronous_region_records_the_submitter(void **state)
{
	struct fixture *fixture = *state;
	struct pier_event_queue *queue = NULL;
	struct pier_registration *registration;
	struct pier_event event;

	expect_ok(pier_event_queue_create(NULL, &queue));
	registration = test_register_async(queue, fixture->pd, fixture->memory);
	expect_result(pier_event_queue_wait(queue, TIME_MS, &event, sizeof(event)), 1);
	expect_ok(event.error);
	expect_made_by("test_register_async", FIXED + 1, 3);
	expect_ok(pier_registration_close(registration));
	expect_ok(pier_mr_dereg(event.mr));
	expect_ok(pier_event_queue_destroy(queue));
}

static void failed_call_leaves_no_caller_behind(void **state)
{
	struct fixture *fixture = *state;
	struct pier_buffer *buffer;

	expect_result(test_fail_to_make(fixture->pd), -EINVAL);
	assert_null(pier_caller);
	buffer = test_make_buffer();
	expect_made_by("test_make_buffer", FIXED, 1);
	expect_ok(pier_buffer_free(buffer));
}

#define TEST(function) \
	cmocka_unit_test_setup_teardown(function, open_fixture, close_fixture)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(parts_of_a_pool_record_its_caller),
		TEST(parts_of_a_ring_record_its_caller),
		TEST(channels_of_a_group_record_its_caller),
		TEST(cached_region_records_the_caller_of_the_miss),
		TEST(asynchronous_region_records_the_submitter),
		TEST(failed_call_leaves_no_caller_behind),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
