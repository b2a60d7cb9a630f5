/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Every call that returns a struct that can grow writes as much of it as the caller has:
 * an older program has a shorter struct, a newer one a longer struct.
 */
#include "tests/support/cmocka.h"
#include "tests/support/expect.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <pier/pier.h>

enum {
	LENGTH = 4096,
	TIME_MS = 30000,
	NEWER = 24, /* bytes that a newer header has */
	GUARD = 64, /* bytes behind the struct, which belong to the caller */
	LONGEST = 2048,
};

/* One object of each kind that has a query. */
struct fixture {
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_buffer *buffer;
	struct pier_mr *mr;
	struct pier_channel *channel, *broken;
	struct pier_mr_cache *cache;
	struct pier_event_queue *queue;
	struct pier_transfer *transfer;
	struct pier_receiver *receiver;
	struct pier_ring *ring;
};

static struct fixture fixture;

static void connect_to_itself(struct pier_channel *channel)
{
	struct pier_endpoint endpoint;

	expect_ok(pier_channel_endpoint(channel, &endpoint));
	expect_ok(pier_channel_connect(channel, &endpoint));
}

static void begin_transfer(void)
{
	struct pier_rail rail = { .channel = fixture.channel,
				  .mr = fixture.mr,
				  .count = 1 };
	struct pier_transfer_attr attr;
	struct pier_remote whole;

	expect_ok(pier_mr_remote(fixture.mr, &whole));
	pier_transfer_attr_init(&attr);
	rail.parts = &whole;
	attr.rails = &rail;
	attr.rail_count = 1;
	attr.length = LENGTH;
	expect_ok(pier_transfer_create(&attr, &fixture.transfer));
}

static void begin_receiver(void)
{
	struct pier_receiver_rail rail = { .channel = fixture.channel, .mr = fixture.mr };
	struct pier_receiver_attr attr;

	pier_receiver_attr_init(&attr);
	attr.rails = &rail;
	attr.rail_count = 1;
	attr.length = LENGTH;
	expect_ok(pier_receiver_create(&attr, &fixture.receiver));
}

static int open_fixture(void **state)
{
	struct pier_mr_cache_attr unwatched;

	(void)state;
	expect_ok(pier_device_open(PIER_SOFT_DEVICE, &fixture.device));
	expect_ok(pier_pd_alloc(fixture.device, &fixture.pd));
	expect_ok(pier_buffer_alloc("memfd", LENGTH, &fixture.buffer));
	expect_ok(pier_mr_reg_buffer(fixture.pd, fixture.buffer, 0, LENGTH,
				     PIER_ACCESS_SHARED, PIER_POLICY_DIRECT,
				     &fixture.mr));
	expect_ok(pier_channel_create(fixture.pd, NULL, &fixture.channel));
	connect_to_itself(fixture.channel);
	expect_ok(pier_channel_create(fixture.pd, NULL, &fixture.broken));
	expect_ok(pier_channel_cancel(fixture.broken));
	pier_mr_cache_attr_init(&unwatched);
	unwatched.flags = PIER_MR_CACHE_UNWATCHED;
	expect_ok(pier_mr_cache_create(fixture.pd, &unwatched, &fixture.cache));
	expect_ok(pier_event_queue_create(NULL, &fixture.queue));
	begin_transfer();
	begin_receiver();
	expect_ok(pier_ring_create(fixture.pd, NULL, &fixture.ring));
	return 0;
}

static int close_fixture(void **state)
{
	(void)state;
	expect_ok(pier_ring_destroy(fixture.ring));
	expect_ok(pier_receiver_destroy(fixture.receiver));
	expect_ok(pier_transfer_destroy(fixture.transfer));
	expect_ok(pier_event_queue_destroy(fixture.queue));
	expect_ok(pier_mr_cache_destroy(fixture.cache));
	expect_ok(pier_channel_destroy(fixture.broken));
	expect_ok(pier_channel_destroy(fixture.channel));
	expect_ok(pier_mr_dereg(fixture.mr));
	expect_ok(pier_buffer_free(fixture.buffer));
	expect_ok(pier_pd_dealloc(fixture.pd));
	return pier_device_close(fixture.device);
}

/* Return the last entry of a list, if there is one. */
static bool take_last(void *list, uint32_t count, void *ret, size_t size)
{
	if (count)
		memcpy(ret, (char *)list + (count - 1) * size, size);
	free(list);
	return count > 0;
}

/* An event can be read once, so each call has a registration of its own. */
static bool read_event(void *ret, size_t size)
{
	struct pier_mr_range range = pier_mr_range_buffer(fixture.buffer, 0, LENGTH);
	struct pier_registration *registration;
	struct pier_event *event = ret;
	struct pier_mr_attr attr;

	pier_mr_attr_init(&attr);
	attr.ranges = &range;
	attr.range_count = 1;
	expect_ok(pier_mr_reg_async(fixture.queue, fixture.pd, &attr, &registration));
	expect_result(pier_event_queue_wait(fixture.queue, TIME_MS, ret, size), 1);
	assert_true(size >= offsetof(struct pier_event, context));
	expect_ok(pier_mr_dereg(event->mr));
	expect_ok(pier_registration_close(registration));
	return true;
}

static bool query_channel(void *ret, size_t size)
{
	pier_channel_query(fixture.channel, ret, size);
	assert_true(((struct pier_channel_attr *)ret)->size == size);
	return true;
}

static bool choose_rails(void *ret, size_t size)
{
	uint8_t bytes[PIER_RAILS_SIZE_MAX];
	int length = pier_rails_describe(NULL, "soft0,soft0", bytes, sizeof(bytes));
	char *pairs = calloc(2, size);

	expect_result(length > 0, 1);
	assert_non_null(pairs);
	expect_result(pier_rails_choose(bytes, (size_t)length, bytes, (size_t)length,
					(void *)pairs, 2, size),
		      2);
	return take_last(pairs, 2, ret, size);
}

/* Each function makes one call. Returns whether there is a struct: a list can be empty.
 */
#define CALL(name, statement)                    \
	static bool name(void *ret, size_t size) \
	{                                        \
		statement;                       \
		return true;                     \
	}
#define LIST(name, call)                                            \
	static bool name(void *ret, size_t size)                    \
	{                                                           \
		struct pier_location nowhere = { .numa_node = -1 }; \
		uint32_t count;                                     \
		void *list;                                         \
                                                                    \
		(void)nowhere;                                      \
		expect_ok(call);                                    \
		return take_last(list, count, ret, size);           \
	}
CALL(query_buffer, expect_ok(pier_buffer_query(fixture.buffer, ret, size)))
CALL(query_device, expect_ok(pier_device_query(fixture.device, ret, size)))
CALL(query_port, expect_ok(pier_device_query_port(fixture.device, 1, ret, size)))
CALL(query_gid, expect_ok(pier_device_query_gid(fixture.device, 1, 0, ret, size)))
CALL(query_region, pier_mr_query(fixture.mr, ret, size))
CALL(query_part, expect_ok(pier_mr_part(fixture.mr, 0, ret, size)))
CALL(query_cache, pier_mr_cache_query_stats(fixture.cache, ret, size))
CALL(query_transfer, pier_transfer_query(fixture.transfer, ret, size))
CALL(query_rail, expect_ok(pier_transfer_query_rail(fixture.transfer, 0, ret, size)))
CALL(query_receiver, pier_receiver_query(fixture.receiver, ret, size))
CALL(query_receiver_rail,
     expect_ok(pier_receiver_query_rail(fixture.receiver, 0, ret, size)))
CALL(query_ring, pier_ring_query(fixture.ring, ret, size))
CALL(read_failure, assert_true(pier_channel_error(fixture.broken, ret, size) < 0))
LIST(list_backends, pier_backend_list((void *)&list, &count, size))
LIST(list_devices, pier_device_list((void *)&list, &count, size))
LIST(list_near, pier_device_list_near(&nowhere, (void *)&list, &count, size))
LIST(list_units, pier_memory_unit_list((void *)&list, &count, size))
LIST(list_objects, pier_object_list((void *)&list, &count, size))

/* tests/lint/check_headers: each function with a size for its struct is named here. */
static const struct query {
	const char *name;
	bool (*call)(void *ret, size_t size);
	size_t known;
} queries[] = {
	{ "pier_backend_list", list_backends, sizeof(struct pier_backend_info) },
	{ "pier_buffer_query", query_buffer, sizeof(struct pier_buffer_info) },
	{ "pier_channel_error", read_failure, sizeof(struct pier_channel_failure) },
	{ "pier_channel_query", query_channel, sizeof(struct pier_channel_attr) },
	{ "pier_device_list", list_devices, sizeof(struct pier_device_info) },
	{ "pier_device_list_near", list_near, sizeof(struct pier_near_device) },
	{ "pier_device_query", query_device, sizeof(struct pier_device_attr) },
	{ "pier_device_query_gid", query_gid, sizeof(struct pier_gid_entry) },
	{ "pier_device_query_port", query_port, sizeof(struct pier_port_attr) },
	{ "pier_event_queue_wait", read_event, sizeof(struct pier_event) },
	{ "pier_memory_unit_list", list_units, sizeof(struct pier_memory_unit) },
	{ "pier_mr_cache_query_stats", query_cache, sizeof(struct pier_mr_cache_stats) },
	{ "pier_mr_part", query_part, sizeof(struct pier_mr_part_info) },
	{ "pier_mr_query", query_region, sizeof(struct pier_mr_info) },
	{ "pier_object_list", list_objects, sizeof(struct pier_object_info) },
	{ "pier_rails_choose", choose_rails, sizeof(struct pier_rail_pair) },
	{ "pier_receiver_query", query_receiver, sizeof(struct pier_receiver_status) },
	{ "pier_receiver_query_rail", query_receiver_rail,
	  sizeof(struct pier_rail_status) },
	{ "pier_ring_query", query_ring, sizeof(struct pier_ring_status) },
	{ "pier_transfer_query", query_transfer, sizeof(struct pier_transfer_status) },
	{ "pier_transfer_query_rail", query_rail, sizeof(struct pier_rail_status) },
};

/* Two memories with different bytes show what a call with this size writes. */
static void check_size(const struct query *query, size_t size)
{
	static char first[LONGEST + GUARD] __attribute__((aligned(16))),
		second[LONGEST + GUARD] __attribute__((aligned(16)));
	size_t common = size < query->known ? size : query->known;

	assert_true(size <= LONGEST);
	memset(first, 1, sizeof(first));
	memset(second, 2, sizeof(second));
	assert_true(query->call(first, size) && query->call(second, size));
	for (size_t i = 0; i < size + GUARD; i++) {
		bool untouched = first[i] == 1 && second[i] == 2,
		     zero = first[i] == 0 && second[i] == 0;

		if (i < common ? untouched : i < size ? !zero : !untouched)
			fail_msg("%s with %zu of %zu bytes: byte %zu is %d and %d",
				 query->name, size, query->known, i, first[i], second[i]);
	}
}

static void writes_what_the_caller_has(void **state)
{
	static char whole[LONGEST] __attribute__((aligned(16)));

	(void)state;
	for (size_t i = 0; i < sizeof(queries) / sizeof(queries[0]); i++) {
		const struct query *query = &queries[i];

		if (!query->call(whole, query->known)) {
			print_message("%s: the list is empty here\n", query->name);
			continue;
		}
		check_size(query, query->known / 2);
		check_size(query, query->known - 1);
		check_size(query, query->known);
		check_size(query, query->known + NEWER);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(writes_what_the_caller_has),
	};

	return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
