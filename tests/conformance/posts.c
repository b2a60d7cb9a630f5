/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>

#include "cases.h"
#include "world.h"

/* Batches, flags and atomics. */

enum {
	SEGMENTS = 40, /* more than one call of the device takes */
	SEGMENT = 3001,
};

static struct pier_channel_attr deep_attr(void)
{
	struct pier_channel_attr attr = test_attr();

	attr.max_send_wr = 2 * SEGMENTS;
	return attr;
}

static struct world *deep_world(void **state)
{
	struct pier_channel_attr attr = deep_attr();

	return world_connected_with(state, &attr);
}

static size_t from_of(int i)
{
	return 1 + (size_t)i * (SEGMENT + 2);
}

static size_t to_of(int i)
{
	return (size_t)(SEGMENTS - 1 - i) * SEGMENT;
}

static void batches_of_writes_arrive(void **state)
{
	struct world *world = deep_world(state);
	struct pier_request requests[SEGMENTS] = { 0 };
	struct pier_gather elements[SEGMENTS];
	struct pier_remote parts[SEGMENTS];
	struct pier_work work;

	for (int i = 0; i < SEGMENTS; i++) {
		size_t length = i % 7 == 3 ? 0 : SEGMENT;

		elements[i] = gather_at(&world->a.area, from_of(i), length);
		parts[i] = remote_at(&world->b.area, to_of(i), length);
		requests[i].opcode = PIER_OP_WRITE;
		requests[i].gather = &elements[i];
		requests[i].num_sge = 1;
		requests[i].remote = &parts[i];
		image_copy(&world->b.area, to_of(i), &world->a.area, from_of(i), length);
	}
	expect_ok(pier_channel_post_batch(world->a.channel, requests, SEGMENTS, &work));
	expect_end(world->a.channel, work, 0);
	assert_int_equal(pier_channel_outstanding(world->a.channel), 0);
	world_expect(world);
}

static void pairs_are_written_and_read(void **state)
{
	struct world *world = deep_world(state);
	struct pier_write_pair writes[SEGMENTS];
	struct pier_read_pair reads[SEGMENTS];
	struct pier_work work;

	for (int i = 0; i < SEGMENTS; i++) {
		writes[i].gather = gather_at(&world->a.area, from_of(i), SEGMENT);
		writes[i].remote = remote_at(&world->b.area, to_of(i), SEGMENT);
		image_copy(&world->b.area, to_of(i), &world->a.area, from_of(i), SEGMENT);
	}
	expect_ok(pier_channel_post_writes(world->a.channel, writes, SEGMENTS, &work));
	expect_end(world->a.channel, work, 0);
	world_expect(world);

	area_shuffle(world, &world->b.area);
	for (int i = 0; i < SEGMENTS; i++) {
		reads[i].scatter = scatter_at(&world->a.area, to_of(i), SEGMENT);
		reads[i].remote = remote_at(&world->b.area, from_of(i), SEGMENT);
		image_copy(&world->a.area, to_of(i), &world->b.area, from_of(i), SEGMENT);
	}
	expect_ok(pier_channel_post_reads(world->a.channel, reads, SEGMENTS, &work));
	expect_end(world->a.channel, work, 0);
	world_expect(world);
}

/* A fenced write sends the bytes that the preceding read fetched. */
static void fence_orders_write_after_read(void **state)
{
	struct world *world = deep_world(state);
	struct pier_scatter here = scatter_at(&world->a.area, 11, 50000);
	struct pier_gather again = gather_at(&world->a.area, 11, 50000);
	struct pier_remote from = remote_at(&world->b.area, 3, 50000);
	struct pier_remote to = remote_at(&world->b.area, 100001, 50000);
	struct pier_request requests[2] = {
		{ .opcode = PIER_OP_READ,
		  .scatter = &here,
		  .num_sge = 1,
		  .remote = &from },
		{ .opcode = PIER_OP_WRITE,
		  .flags = PIER_POST_FENCE,
		  .gather = &again,
		  .num_sge = 1,
		  .remote = &to },
	};
	struct pier_work work;

	expect_ok(pier_channel_post_batch(world->a.channel, requests, 2, &work));
	expect_end(world->a.channel, work, 0);
	image_copy(&world->a.area, 11, &world->b.area, 3, 50000);
	image_copy(&world->b.area, 100001, &world->b.area, 3, 50000);
	world_expect(world);
}

/* The bytes come first, and the immediate of a separate request behind them. */
static void immediate_follows_a_batch(void **state)
{
	struct world *world = deep_world(state);
	struct pier_scatter unused = scatter_at(&world->b.area, 0, 0);
	struct pier_gather source = gather_at(&world->a.area, 5, 4097);
	struct pier_remote target = remote_at(&world->b.area, 4095, 4097);
	struct pier_request requests[2] = {
		{ .opcode = PIER_OP_WRITE,
		  .gather = &source,
		  .num_sge = 1,
		  .remote = &target },
		{ .opcode = PIER_OP_WRITE,
		  .flags = PIER_POST_IMMEDIATE | PIER_POST_SOLICITED,
		  .remote = &target,
		  .immediate = 0x12345678 },
	};
	struct pier_result result;
	struct pier_work work, recv;

	expect_ok(pier_channel_post_recv(world->b.channel, &unused, 1, &recv));
	expect_ok(pier_channel_post_batch(world->a.channel, requests, 2, &work));
	result = expect_end(world->b.channel, recv, 0);
	assert_int_equal(result.opcode, PIER_OP_RECV_WRITE_IMM);
	assert_int_equal(result.immediate, 0x12345678);
	image_copy(&world->b.area, 4095, &world->a.area, 5, 4097);
	world_expect(world);
	expect_end(world->a.channel, work, 0);
}

/* The peer refuses a request in the middle: the batch ends and reports the cause. */
static void failed_batch_reports_the_cause(void **state)
{
	struct world *world = deep_world(state);
	struct pier_write_pair writes[3];
	struct pier_work work;

	for (int i = 0; i < 3; i++) {
		writes[i].gather = gather_at(&world->a.area, from_of(i), SEGMENT);
		writes[i].remote = remote_at(&world->b.area, to_of(i), SEGMENT);
	}
	writes[1].remote.rkey ^= 0x5a5a5a;
	expect_ok(pier_channel_post_writes(world->a.channel, writes, 3, &work));
	expect_end(world->a.channel, work, -ECANCELED);
	test_assert_sentence("refused");
	image_copy(&world->b.area, to_of(0), &world->a.area, from_of(0), SEGMENT);
	world_expect(world);
}

static void long_lists_are_split(void **state)
{
	struct pier_channel_attr attr = deep_attr();
	struct pier_gather source[SEGMENTS];
	struct pier_scatter target[SEGMENTS];
	struct pier_remote whole;
	struct world *world;
	size_t at = 7;

	attr.max_send_sge = 3;
	world = world_connected_with(state, &attr);
	whole = remote_at(&world->b.area, 7, SEGMENTS * 100);
	for (int i = 0; i < SEGMENTS; i++, at += 100) {
		source[i] = gather_at(&world->a.area, from_of(i), 100);
		image_copy(&world->b.area, at, &world->a.area, from_of(i), 100);
	}
	expect_ok(
		pier_channel_write(world->a.channel, source, SEGMENTS, &whole, PATIENT));
	world_expect(world);
	for (int i = 0; i < SEGMENTS; i++) {
		target[i] = scatter_at(&world->a.area, from_of(i) + 9, 100);
		image_copy(&world->a.area, from_of(i) + 9, &world->b.area,
			   7 + 100 * (size_t)i, 100);
	}
	expect_ok(pier_channel_read(world->a.channel, target, SEGMENTS, &whole, PATIENT));
	world_expect(world);
}

static uint64_t number_at(const struct area *area, size_t offset)
{
	uint64_t number;

	memcpy(&number, area->image + offset, sizeof(number));
	return number;
}

static void set_number(struct area *area, size_t offset, uint64_t number)
{
	memcpy(area->image + offset, &number, sizeof(number));
}

static struct world *atomic_world(void **state, struct pier_mr **ret_mr)
{
	const int access = PIER_ACCESS_SHARED | PIER_ACCESS_REMOTE_ATOMIC;
	struct pier_channel_attr attr = deep_attr();
	struct world *world = world_empty(state);
	struct pier_device_attr device;

	expect_ok(end_open(&world->a, test_device));
	expect_ok(pier_device_query(world->a.device, &device, sizeof(device)));
	expect_ok(end_close(&world->a));
	if (!device.atomics)
		world_skip("the device has no atomics");
	attr.access = access;
	world = world_connected_with(state, &attr);
	expect_ok(pier_mr_reg_buffer(world->b.pd, world->b.area.buffer, 0, AREA_LENGTH,
				     access, PIER_POLICY_DIRECT, ret_mr));
	return world;
}

/* The areas begin at a page and the offsets are multiples of 8, so all are aligned. */
static void atomics_are_atomic(void **state)
{
	struct pier_mr *numbers;
	struct world *world = atomic_world(state, &numbers);
	struct pier_channel *channel = world->a.channel;
	struct area *mine = &world->a.area, *theirs = &world->b.area;
	struct pier_scatter old = scatter_at(mine, 13, 8);
	uint64_t before = number_at(theirs, 4096);
	struct pier_remote whole, there;
	struct pier_result result;
	struct pier_work work;

	expect_ok(pier_mr_remote(numbers, &whole));
	expect_ok(pier_remote_sub(&whole, 4096, 8, &there));
	expect_ok(test_post_fetch_add(channel, &old, &there, 5, &work));
	result = expect_end(channel, work, 0);
	assert_int_equal(result.opcode, PIER_OP_FETCH_ADD);
	assert_int_equal(result.byte_length, 8);
	set_number(mine, 13, before);
	set_number(theirs, 4096, before + 5);
	world_expect(world);

	expect_ok(test_channel_compare_swap(channel, &old, &there, before, 77, PATIENT));
	set_number(mine, 13, before + 5);
	world_expect(world);

	expect_ok(test_channel_compare_swap(channel, &old, &there, before + 5, 77,
					    PATIENT));
	set_number(theirs, 4096, 77);
	world_expect(world);

	expect_ok(test_channel_fetch_add(channel, &old, &there, UINT64_MAX, PATIENT));
	set_number(mine, 13, 77);
	set_number(theirs, 4096, 76);
	world_expect(world);
	expect_ok(pier_mr_dereg(numbers));
}

int run_post_cases(void)
{
	const struct CMUnitTest tests[] = {
		world_case(batches_of_writes_arrive),
		world_case(pairs_are_written_and_read),
		world_case(fence_orders_write_after_read),
		world_case(immediate_follows_a_batch),
		world_case(failed_batch_reports_the_cause),
		world_case(long_lists_are_split),
		world_case(atomics_are_atomic),
	};

	return cmocka_run_group_tests_name("posts", tests, NULL, NULL);
}
