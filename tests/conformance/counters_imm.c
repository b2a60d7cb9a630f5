/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "cases.h"
#include "world.h"

/* Writes counted by their immediate data, on any device. */

enum {
	NUMBER = 0x80000001,
	OTHER = 0x80000000,
};

static struct pier_counter *counter_of(const struct end *end)
{
	struct pier_counter *counter = NULL;

	expect_ok(pier_counter_create(end->pd, &counter));
	return counter;
}

/* Returns a counter of b that counts the writes of a with this NUMBER. */
static struct pier_counter *bound(struct world *world)
{
	struct pier_counter *counter = counter_of(&world->b);

	expect_ok(pier_counter_bind_imm(counter, world->b.area.mr, world->b.channel,
					NUMBER));
	return counter;
}

static void release(struct world *world, struct pier_counter *counter)
{
	expect_ok(pier_counter_unbind(counter, world->b.area.mr));
	expect_ok(pier_counter_destroy(counter));
}

/* a writes some bytes with this number as immediate data. b posts a receive for it. */
static void announce(struct world *world, uint32_t number)
{
	size_t length = test_random_below(&world->random, 70000);
	size_t from = test_random_below(&world->random, AREA_LENGTH - length);
	size_t to = test_random_below(&world->random, AREA_LENGTH - length);
	struct pier_gather source = gather_at(&world->a.area, from, length);
	struct pier_remote target = remote_at(&world->b.area, to, length);

	expect_ok(pier_channel_post_recv(world->b.channel, NULL, 0, NULL));
	expect_ok(test_channel_write_imm(world->a.channel, &source, 1, &target, number,
					 PATIENT));
	image_copy(&world->b.area, to, &world->a.area, from, length);
}

static void only_writes_with_the_number_are_counted(void **state)
{
	struct world *world = world_connected(state);
	struct pier_counter *counter = bound(world);

	for (uint64_t i = 1; i <= 30; i++) {
		announce(world, NUMBER);
		expect_result(pier_counter_wait(counter, i, PATIENT), 1);
		world_expect(world);
		announce(world, OTHER);
		announce(world, NUMBER - (uint32_t)i - 1);
		assert_int_equal(pier_counter_read(counter), i);
	}
	expect_ok(pier_channel_post_recv(world->b.channel, NULL, 0, NULL));
	expect_ok(test_channel_send_imm(world->a.channel, NULL, 0, NUMBER, PATIENT));
	expect_result(pier_counter_wait(counter, 31, BRIEF), -ETIMEDOUT);
	world_expect(world);
	assert_int_equal(pier_counter_read(counter), 30);
	release(world, counter);
	announce(world, NUMBER);
	expect_result(pier_counter_wait(counter = counter_of(&world->b), 1, BRIEF),
		      -ETIMEDOUT);
	expect_ok(pier_counter_destroy(counter));
	world_expect(world);
}

/* A handle returns the result even if the counter collected the completion. */
static void counted_receive_still_returns_its_result(void **state)
{
	struct world *world = world_connected(state);
	struct pier_counter *counter = bound(world);
	struct pier_gather source = gather_at(&world->a.area, 1, 300);
	struct pier_remote target = remote_at(&world->b.area, 2, 300);
	struct pier_result result;
	struct pier_work work;

	for (int counted_first = 0; counted_first < 2; counted_first++) {
		expect_ok(pier_channel_post_recv(world->b.channel, NULL, 0, &work));
		expect_ok(test_channel_write_imm(world->a.channel, &source, 1, &target,
						 NUMBER, PATIENT));
		if (counted_first)
			expect_result(pier_counter_wait(counter, 2, PATIENT), 1);
		result = expect_end(world->b.channel, work, 0);
		assert_int_equal(result.opcode, PIER_OP_RECV_WRITE_IMM);
		assert_int_equal(result.byte_length, 300);
		assert_true(result.has_immediate);
		assert_true(result.immediate == NUMBER);
		assert_int_equal(pier_counter_read(counter), 1 + counted_first);
	}
	image_copy(&world->b.area, 2, &world->a.area, 1, 300);
	world_expect(world);
	release(world, counter);
}

static void bound_region_is_kept(void **state)
{
	struct world *world = world_connected(state);
	struct pier_counter *counter = bound(world), *second = counter_of(&world->b);
	struct pier_mr *mr = world->b.area.mr;

	expect_result(pier_counter_bind_imm(second, mr, world->b.channel, NUMBER),
		      -EBUSY);
	expect_ok(pier_counter_bind_imm(second, mr, world->b.channel, OTHER));
	expect_result(pier_mr_dereg(mr), -EBUSY);
	expect_result(pier_counter_destroy(counter), -EBUSY);
	announce(world, OTHER);
	announce(world, NUMBER);
	announce(world, OTHER);
	expect_result(pier_counter_wait(second, 2, PATIENT), 1);
	expect_result(pier_counter_wait(counter, 1, PATIENT), 1);
	world_expect(world);
	expect_ok(pier_counter_unbind(second, mr));
	expect_result(pier_mr_dereg(mr), -EBUSY);
	expect_ok(pier_counter_destroy(second));
	release(world, counter);
}

static void destroying_channel_unbinds_counter(void **state)
{
	struct world *world = world_connected(state);
	struct pier_counter *counter = bound(world);

	expect_ok(pier_counter_bind_imm(counter, world->b.area.mr, world->b.channel,
					OTHER));
	announce(world, OTHER);
	expect_result(pier_counter_wait(counter, 1, PATIENT), 1);
	world_expect(world);
	expect_ok(pier_channel_destroy(world->b.channel));
	world->b.channel = NULL;
	expect_result(pier_counter_unbind(counter, world->b.area.mr), -ENOENT);
	assert_int_equal(pier_counter_read(counter), 1);
	expect_ok(pier_counter_destroy(counter));
}

static void counter_works_after_timeout(void **state)
{
	struct world *world = world_connected(state);
	struct pier_counter *counter = bound(world);

	expect_result(pier_counter_wait(counter, 1, 0), 0);
	expect_result(pier_counter_wait(counter, 1, BRIEF), -ETIMEDOUT);
	announce(world, NUMBER);
	expect_result(pier_counter_wait(counter, 1, PATIENT), 1);
	world_expect(world);
	release(world, counter);
}

static void wait_on_broken_channel_fails(void **state)
{
	struct world *world = world_connected(state);
	struct pier_counter *counter = bound(world);

	expect_result(pier_channel_recv(world->b.channel, NULL, 0, 0, NULL), -ETIMEDOUT);
	expect_result(pier_counter_wait(counter, 1, PATIENT), -EPIPE);
	test_assert_sentence("the channel is broken");
	release(world, counter);
}

static void binding_unwritable_region_is_refused(void **state)
{
	struct pier_channel_attr attr = test_attr();
	struct world *world = world_connected(state);
	struct pier_counter *counter = counter_of(&world->b);
	struct pier_channel *closed = NULL;
	struct area local = { 0 };

	expect_ok(area_open(&local, world->b.pd, PIER_ACCESS_LOCAL_WRITE));
	expect_result(pier_counter_bind_imm(counter, local.mr, world->b.channel, 1),
		      -EACCES);
	expect_ok(area_close(&local));
	attr.access = PIER_ACCESS_REMOTE_READ;
	expect_ok(pier_channel_create(world->b.pd, &attr, &closed));
	expect_result(pier_counter_bind_imm(counter, world->b.area.mr, closed, 1),
		      -EACCES);
	expect_ok(pier_channel_destroy(closed));
	expect_result(
		pier_counter_bind_imm(counter, world->b.area.mr, world->a.channel, 1),
		-EINVAL);
	expect_ok(pier_counter_destroy(counter));
}

static void null_is_refused(void **state)
{
	struct world *world = world_connected(state);
	struct pier_counter *counter = counter_of(&world->b);
	struct pier_mr *mr = world->b.area.mr;

	expect_result(pier_counter_bind(counter, NULL), -EINVAL);
	expect_result(pier_counter_bind_imm(counter, NULL, world->b.channel, NUMBER),
		      -EINVAL);
	test_assert_sentence("mr is NULL");
	expect_result(pier_counter_bind_imm(counter, mr, NULL, NUMBER), -EINVAL);
	test_assert_sentence("channel is NULL");
	expect_result(pier_counter_unbind(counter, NULL), -EINVAL);
	expect_result(pier_mr_bind_sub(world->b.channel, NULL, 0, 1,
				       PIER_ACCESS_REMOTE_READ, PATIENT, &mr),
		      -EINVAL);
	expect_ok(pier_counter_destroy(counter));
}

int run_counter_imm_cases(void)
{
	const struct CMUnitTest cases[] = {
		world_case(only_writes_with_the_number_are_counted),
		world_case(counted_receive_still_returns_its_result),
		world_case(bound_region_is_kept),
		world_case(destroying_channel_unbinds_counter),
		world_case(counter_works_after_timeout),
		world_case(wait_on_broken_channel_fails),
		world_case(binding_unwritable_region_is_refused),
		world_case(null_is_refused),
	};

	return cmocka_run_group_tests_name("counters of announced writes", cases, NULL,
					   NULL);
}
