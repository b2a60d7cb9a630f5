/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "cases.h"
#include "world.h"

/* Writes of peers that the device counts by itself, if it can. */

static bool counts(struct pier_device *device)
{
	struct pier_device_attr attr;

	expect_ok(pier_device_query(device, &attr, sizeof(attr)));
	return attr.counters;
}

static struct pier_counter *counter_of(const struct end *end)
{
	struct pier_counter *counter = NULL;

	expect_ok(pier_counter_create(end->pd, &counter));
	return counter;
}

/* A connected world. Skips the case if the device of b does not count. */
static struct world *world_counting(void **state)
{
	struct world *world = world_connected(state);

	if (!counts(world->b.device))
		world_skip("the device does not count writes");
	return world;
}

/* Unbinds the counter from the region and destroys it. */
static void release(struct pier_counter *counter, struct pier_mr *mr)
{
	expect_ok(pier_counter_unbind(counter, mr));
	expect_ok(pier_counter_destroy(counter));
}

static void binding_needs_a_counting_device(void **state)
{
	struct world *world = world_connected(state);
	struct pier_counter *counter = counter_of(&world->b);
	struct pier_mr *mr = world->b.area.mr;

	if (counts(world->b.device)) {
		expect_ok(pier_counter_bind(counter, mr));
		expect_ok(pier_counter_unbind(counter, mr));
	} else {
		expect_result(pier_counter_bind(counter, mr), -EOPNOTSUPP);
		test_assert_sentence("pier_counter_bind_imm()");
	}
	expect_result(pier_counter_unbind(counter, mr), -ENOENT);
	expect_ok(pier_counter_destroy(counter));
}

/* Makes one random request of a to b. Returns 1 if it must be counted, otherwise 0. */
static uint64_t do_something(struct world *world)
{
	size_t length = 1 + test_random_below(&world->random, 70000);
	size_t from = test_random_below(&world->random, AREA_LENGTH - length);
	size_t to = test_random_below(&world->random, AREA_LENGTH - length);
	struct pier_channel *channel = world->a.channel;
	struct pier_gather source = gather_at(&world->a.area, from, length);
	struct pier_scatter sink = scatter_at(&world->a.area, from, length);
	struct pier_remote target = remote_at(&world->b.area, to, length);

	switch (test_random_below(&world->random, 6)) {
	case 0:
		expect_ok(pier_channel_read(channel, &sink, 1, &target, PATIENT));
		image_copy(&world->a.area, from, &world->b.area, to, length);
		return 0;
	case 1:
		expect_ok(pier_channel_post_recv(world->b.channel, NULL, 0, NULL));
		expect_ok(test_channel_send_imm(channel, NULL, 0, 5, PATIENT));
		return 0;
	case 2:
		expect_ok(pier_channel_write(channel, NULL, 0, &target, PATIENT));
		return 0;
	case 3:
		expect_ok(pier_channel_post_recv(world->b.channel, NULL, 0, NULL));
		expect_ok(
			test_channel_write_imm(channel, &source, 1, &target, 5, PATIENT));
		break;
	default:
		expect_ok(pier_channel_write(channel, &source, 1, &target, PATIENT));
	}
	image_copy(&world->b.area, to, &world->a.area, from, length);
	return 1;
}

static void only_writes_are_counted(void **state)
{
	struct world *world = world_counting(state);
	struct pier_counter *counter = counter_of(&world->b);
	uint64_t expected = 0;

	expect_ok(pier_counter_bind(counter, world->b.area.mr));
	for (int i = 0; i < 60; i++) {
		expected += do_something(world);
		expect_result(pier_counter_wait(counter, expected, PATIENT), 1);
		world_expect(world);
		assert_int_equal(pier_counter_read(counter), expected);
	}
	release(counter, world->b.area.mr);
	/* Afterwards writes still work, uncounted. */
	for (int i = 0; i < 6; i++)
		do_something(world);
	world_expect(world);
}

static void refused_write_is_not_counted(void **state)
{
	struct world *world = world_counting(state);
	struct pier_counter *counter = counter_of(&world->b);
	struct pier_gather source = gather_at(&world->a.area, 0, 100);
	struct pier_remote beyond = remote_at(&world->b.area, AREA_LENGTH - 99, 99);

	expect_ok(pier_counter_bind(counter, world->b.area.mr));
	beyond.length = 100;
	assert_true(pier_channel_write(world->a.channel, &source, 1, &beyond, PATIENT) <
		    0);
	assert_int_equal(pier_counter_read(counter), 0);
	world_expect(world);
	release(counter, world->b.area.mr);
}

static void write_some(struct world *world, const struct pier_remote *target)
{
	struct pier_gather source = gather_at(&world->a.area, 0, 10);

	expect_ok(pier_channel_write(world->a.channel, &source, 1, target, PATIENT));
}

/* Writes count for the key that they use. */
static void write_counts_for_its_own_key(void **state)
{
	struct world *world = world_counting(state);
	struct pier_counter *of_base = counter_of(&world->b);
	struct pier_counter *of_sub = counter_of(&world->b);
	struct pier_remote base = remote_at(&world->b.area, 100, 10), sub;
	struct pier_mr *sub_mr = NULL;

	expect_ok(
		pier_mr_reg_sub(world->b.area.mr, 4000, 10, PIER_ACCESS_SHARED, &sub_mr));
	expect_ok(pier_mr_remote(sub_mr, &sub));
	expect_ok(pier_counter_bind(of_base, world->b.area.mr));
	expect_ok(pier_counter_bind(of_sub, sub_mr));
	write_some(world, &base);
	write_some(world, &sub);
	write_some(world, &sub);
	expect_result(pier_counter_wait(of_base, 1, PATIENT), 1);
	expect_result(pier_counter_wait(of_sub, 2, PATIENT), 1);
	assert_int_equal(pier_counter_read(of_base), 1);
	assert_int_equal(pier_counter_read(of_sub), 2);
	image_copy(&world->b.area, 100, &world->a.area, 0, 10);
	image_copy(&world->b.area, 4000, &world->a.area, 0, 10);
	world_expect(world);
	release(of_base, world->b.area.mr);
	release(of_sub, sub_mr);
	expect_ok(pier_mr_dereg(sub_mr));
}

/* These bytes of a region, by the key of their part. */
static struct pier_remote part_at(const struct pier_mr *mr, uint64_t offset,
				  uint64_t length)
{
	struct pier_mr_part_info part;
	uint32_t index = pier_mr_parts(mr);

	do
		expect_ok(pier_mr_part(mr, --index, &part, sizeof(part)));
	while (part.offset > offset);
	return (struct pier_remote){ part.iova + offset - part.offset, length,
				     part.rkey };
}

/* The ranges may have one key or one each. */
static void writes_to_every_range_count(void **state)
{
	enum {
		HALF = 8192
	};
	struct world *world = world_counting(state);
	struct pier_counter *counter = counter_of(&world->b);
	struct pier_mr_range ranges[] = {
		pier_mr_range_buffer(world->b.area.buffer, 0, HALF),
		pier_mr_range_buffer(world->b.area.buffer, 2 * HALF, HALF),
	};
	struct pier_remote first, second;
	struct pier_mr *mr = NULL;

	expect_ok(test_reg_mr_vec(world->b.pd, ranges, 2, PIER_ACCESS_SHARED, &mr));
	expect_ok(pier_counter_bind(counter, mr));
	first = part_at(mr, 5, 10);
	second = part_at(mr, HALF + 7, 10);
	write_some(world, &first);
	write_some(world, &second);
	expect_result(pier_counter_wait(counter, 2, PATIENT), 1);
	image_copy(&world->b.area, 5, &world->a.area, 0, 10);
	image_copy(&world->b.area, 2 * HALF + 7, &world->a.area, 0, 10);
	world_expect(world);
	assert_int_equal(pier_counter_read(counter), 2);
	release(counter, mr);
	expect_ok(pier_mr_dereg(mr));
}

static void bound_region_is_kept(void **state)
{
	struct world *world = world_counting(state);
	struct pier_counter *counter = counter_of(&world->b);
	struct pier_counter *second = counter_of(&world->b);
	struct pier_remote target = remote_at(&world->b.area, 0, 10);
	struct pier_mr *mr = world->b.area.mr;

	expect_ok(pier_counter_bind(counter, mr));
	expect_result(pier_counter_bind(second, mr), -EBUSY);
	expect_result(pier_counter_bind(counter, mr), -EBUSY);
	expect_result(pier_counter_destroy(counter), -EBUSY);
	expect_result(pier_mr_dereg(mr), -EBUSY);
	test_assert_sentence("a counter is bound");
	/* The refusals changed nothing. */
	write_some(world, &target);
	expect_result(pier_counter_wait(counter, 1, PATIENT), 1);
	assert_int_equal(pier_counter_read(second), 0);
	image_copy(&world->b.area, 0, &world->a.area, 0, 10);
	world_expect(world);
	expect_ok(pier_counter_unbind(counter, mr));
	expect_ok(pier_counter_bind(second, mr));
	release(second, mr);
	expect_ok(pier_counter_destroy(counter));
}

static void counter_works_after_timeout(void **state)
{
	struct world *world = world_counting(state);
	struct pier_counter *counter = counter_of(&world->b);
	struct pier_remote target = remote_at(&world->b.area, 3, 10);

	expect_ok(pier_counter_bind(counter, world->b.area.mr));
	expect_result(pier_counter_wait(counter, 1, 0), 0);
	expect_result(pier_counter_wait(counter, 1, BRIEF), -ETIMEDOUT);
	write_some(world, &target);
	expect_result(pier_counter_wait(counter, 1, PATIENT), 1);
	expect_result(pier_counter_wait(counter, 2, BRIEF), -ETIMEDOUT);
	image_copy(&world->b.area, 3, &world->a.area, 0, 10);
	world_expect(world);
	release(counter, world->b.area.mr);
}

/* A counter keeps its protection domain, as a region does. */
static void counter_keeps_its_pd(void **state)
{
	struct world *world = world_empty(state);
	struct end *end = &world->a;
	struct pier_counter *counter;

	expect_ok(end_open(end, test_device));
	counter = counter_of(end);
	expect_ok(area_close(&end->area));
	expect_result(pier_pd_dealloc(end->pd), -EBUSY);
	expect_ok(pier_counter_destroy(counter));
	expect_ok(pier_pd_dealloc(end->pd));
	end->pd = NULL;
}

static void binding_unwritable_region_is_refused(void **state)
{
	struct world *world = world_counting(state);
	struct pier_counter *counter = counter_of(&world->b);
	struct pier_counter *elsewhere = counter_of(&world->a);
	struct area local = { 0 };

	expect_ok(area_open(&local, world->b.pd,
			    PIER_ACCESS_LOCAL_WRITE | PIER_ACCESS_REMOTE_READ));
	expect_result(pier_counter_bind(counter, local.mr), -EACCES);
	expect_result(pier_counter_bind(elsewhere, world->b.area.mr), -EINVAL);
	expect_ok(area_close(&local));
	expect_ok(pier_counter_destroy(elsewhere));
	expect_ok(pier_counter_destroy(counter));
}

int run_counter_cases(void)
{
	const struct CMUnitTest cases[] = {
		world_case(binding_needs_a_counting_device),
		world_case(only_writes_are_counted),
		world_case(refused_write_is_not_counted),
		world_case(write_counts_for_its_own_key),
		world_case(writes_to_every_range_count),
		world_case(bound_region_is_kept),
		world_case(counter_works_after_timeout),
		world_case(counter_keeps_its_pd),
		world_case(binding_unwritable_region_is_refused),
	};

	return cmocka_run_group_tests_name("counters", cases, NULL, NULL);
}
