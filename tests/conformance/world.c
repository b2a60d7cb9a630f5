/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "world.h"

const char *world_problem, *world_no_channels;
int cases_run;

/* One seed for all cases, printed once. */
static struct test_random seed;

int world_setup(void **state)
{
	struct world *world = calloc(1, sizeof(*world));

	if (!seed.state)
		seed = test_random_start();
	world->before = test_take_census();
	world->random = seed;
	*state = world;
	return 0;
}

int world_teardown(void **state)
{
	struct world *world = *state;
	struct test_census before = world->before;
	int a = end_close(&world->a), b = end_close(&world->b);

	free(world);
	assert_int_equal(a, 0);
	assert_int_equal(b, 0);
	test_assert_census(&before);
	return 0;
}

void world_skip(const char *reason)
{
	cases_run--;
	print_message("[          ] skipped: %s\n", reason);
	skip();
}

struct world *world_empty(void **state)
{
	cases_run++;
	if (world_problem)
		world_skip(world_problem);
	return *state;
}

struct world *world_for_channels(void **state)
{
	struct world *world = world_empty(state);

	if (world_no_channels)
		world_skip(world_no_channels);
	return world;
}

static struct world *open_ends(struct world *world)
{
	expect_ok(end_open(&world->a, test_device));
	expect_ok(end_open(&world->b, test_peer_device));
	area_shuffle(world, &world->a.area);
	area_shuffle(world, &world->b.area);
	return world;
}

struct world *world_opened(void **state)
{
	return open_ends(world_empty(state));
}

struct world *world_prepared(void **state, const struct pier_channel_attr *attr)
{
	struct world *world = open_ends(world_for_channels(state));

	expect_ok(end_prepare(&world->a, attr));
	expect_ok(end_prepare(&world->b, attr));
	return world;
}

struct world *world_connected_with(void **state, const struct pier_channel_attr *attr)
{
	struct world *world = world_prepared(state, attr);

	expect_ok(ends_connect(&world->a, &world->b));
	return world;
}

struct world *world_connected(void **state)
{
	return world_connected_with(state, NULL);
}

void area_shuffle(struct world *world, struct area *area)
{
	for (size_t i = 0; i < AREA_LENGTH; i += sizeof(uint64_t)) {
		uint64_t bytes = test_random_next(&world->random);
		size_t left = AREA_LENGTH - i;

		memcpy(area->image + i, &bytes,
		       left < sizeof(bytes) ? left : sizeof(bytes));
	}
	expect_ok(pier_buffer_copy_to(area->buffer, 0, area->image, AREA_LENGTH));
}

void area_expect(const struct area *area)
{
	long different = area_compare(area);

	if (different >= 0)
		fail_msg("byte %ld of %d is not what it must be", different, AREA_LENGTH);
}

void world_expect(const struct world *world)
{
	area_expect(&world->a.area);
	area_expect(&world->b.area);
}

void image_copy(struct area *to, size_t to_offset, const struct area *from,
		size_t from_offset, size_t length)
{
	memmove(to->image + to_offset, from->image + from_offset, length);
}

struct pier_gather gather_at(const struct area *area, size_t offset, size_t length)
{
	struct pier_gather element;

	expect_ok(pier_mr_gather(area->mr, area_at(area, offset), length, &element));
	return element;
}

struct pier_scatter scatter_at(const struct area *area, size_t offset, size_t length)
{
	struct pier_scatter element;

	expect_ok(pier_mr_scatter(area->mr, area_at(area, offset), length, &element));
	return element;
}

struct pier_remote remote_at(const struct area *area, size_t offset, size_t length)
{
	struct pier_remote whole, part;

	expect_ok(pier_mr_remote(area->mr, &whole));
	expect_ok(pier_remote_sub(&whole, offset, length, &part));
	return part;
}

struct pier_result expect_end(struct pier_channel *channel, struct pier_work work,
			      int error)
{
	struct pier_result result = { 0 };

	expect_result(test_work_finish(channel, work, PATIENT, &result), error);
	assert_int_equal(result.error, error);
	return result;
}

void expect_vague_end(struct pier_channel *channel, struct pier_work work, int error,
		      int vague_error)
{
	int found;

	if (!test_vague) {
		expect_end(channel, work, error);
		return;
	}
	found = test_work_finish(channel, work, PATIENT, NULL);
	if (found != error && found != vague_error)
		fail_msg("%d, not %d or %d: %s", found, error, vague_error,
			 pier_error_message());
}
