/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "cases.h"
#include "world.h"

/* Writes and reads. The target's program makes no calls meanwhile. */

static const size_t lengths[] = { 1, 3, 64, 4095, 4096, 4097, 65537, 150001 };
enum {
	LENGTHS = sizeof(lengths) / sizeof(lengths[0])
};

static void write_arrives_unchanged(void **state)
{
	struct world *world = world_connected(state);

	for (size_t i = 0; i < LENGTHS; i++) {
		size_t from = 2 * i + 1, to = 4091 + 3 * i;
		struct pier_gather source = gather_at(&world->a.area, from, lengths[i]);
		struct pier_remote target = remote_at(&world->b.area, to, lengths[i]);

		expect_ok(pier_channel_write(world->a.channel, &source, 1, &target,
					     PATIENT));
		image_copy(&world->b.area, to, &world->a.area, from, lengths[i]);
		world_expect(world);
	}
}

/* The bytes go through started copies at both ends. */
static void started_copy_is_written_to_the_peer(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather source = gather_at(&world->a.area, 5, 4097);
	struct pier_remote target = remote_at(&world->b.area, 4091, 4097);
	struct area *from = &world->a.area, *to = &world->b.area;
	struct pier_copy *copy = NULL;
	uint8_t found[4097];

	for (size_t i = 0; i < sizeof(found); i++)
		from->image[5 + i] = (uint8_t)(i * 7);
	expect_ok(pier_buffer_copy_start_to(from->buffer, 5, from->image + 5, 4097, NULL,
					    &copy));
	assert_true(pier_copy_wait(copy, 0) >= 0);
	expect_result(pier_copy_wait(copy, PATIENT), 1);
	expect_ok(pier_copy_free(copy));
	expect_ok(pier_channel_write(world->a.channel, &source, 1, &target, PATIENT));
	image_copy(to, 4091, from, 5, 4097);
	expect_ok(pier_buffer_copy_start_from(to->buffer, 4091, found, sizeof(found),
					      NULL, &copy));
	expect_result(pier_copy_wait(copy, PATIENT), 1);
	expect_ok(pier_copy_free(copy));
	assert_memory_equal(found, to->image + 4091, sizeof(found));
	world_expect(world);
}

static void read_arrives_unchanged(void **state)
{
	struct world *world = world_connected(state);

	for (size_t i = 0; i < LENGTHS; i++) {
		size_t from = 4095 - i, to = 1 + 2 * i;
		struct pier_scatter target = scatter_at(&world->a.area, to, lengths[i]);
		struct pier_remote source = remote_at(&world->b.area, from, lengths[i]);
		struct pier_result result;
		struct pier_work work;

		expect_ok(pier_channel_post_read(world->a.channel, &target, 1, &source,
						 &work));
		result = expect_end(world->a.channel, work, 0);
		assert_int_equal(result.opcode, PIER_OP_READ);
		assert_int_equal(result.byte_length, lengths[i]);
		image_copy(&world->a.area, to, &world->b.area, from, lengths[i]);
		world_expect(world);
	}
}

static void writes_gather_and_reads_scatter(void **state)
{
	static const size_t segments[4] = { 4097, 1, 0, 30000 };
	struct world *world = world_connected(state);
	struct pier_remote whole = remote_at(&world->b.area, 9, 34098);
	struct pier_gather source[4];
	struct pier_scatter target[4];
	size_t at = 9;

	for (size_t i = 0; i < 4; i++) {
		source[i] = gather_at(&world->a.area, 1 + 35001 * i, segments[i]);
		image_copy(&world->b.area, at, &world->a.area, 1 + 35001 * i,
			   segments[i]);
		at += segments[i];
	}
	expect_ok(pier_channel_write(world->a.channel, source, 4, &whole, PATIENT));
	world_expect(world);

	area_shuffle(world, &world->b.area);
	at = 9;
	for (size_t i = 0; i < 4; i++) {
		target[i] = scatter_at(&world->a.area, 7 + 34999 * i, segments[i]);
		image_copy(&world->a.area, 7 + 34999 * i, &world->b.area, at,
			   segments[i]);
		at += segments[i];
	}
	expect_ok(pier_channel_read(world->a.channel, target, 4, &whole, PATIENT));
	world_expect(world);
}

static void empty_write_and_read_succeed(void **state)
{
	struct world *world = world_connected(state);
	struct pier_remote end = remote_at(&world->b.area, AREA_LENGTH, 0);
	struct pier_gather source = gather_at(&world->a.area, 1, 0);
	struct pier_scatter target = scatter_at(&world->a.area, 1, 0);

	for (int elements = 0; elements < 2; elements++) {
		expect_ok(pier_channel_write(world->a.channel, &source, elements, &end,
					     PATIENT));
		expect_ok(pier_channel_read(world->a.channel, &target, elements, &end,
					    PATIENT));
	}
	world_expect(world);
}

static void longer_remote_is_partly_used(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather source = gather_at(&world->a.area, 0, 100);
	struct pier_remote target = remote_at(&world->b.area, 5, 5000), rest;

	expect_ok(pier_channel_write(world->a.channel, &source, 1, &target, PATIENT));
	expect_ok(pier_remote_sub(&target, 4950, 50, &rest));
	expect_result(pier_channel_write(world->a.channel, &source, 1, &rest, PATIENT),
		      -ERANGE);
	image_copy(&world->b.area, 5, &world->a.area, 0, 100);
	world_expect(world);
}

static void write_with_immediate_uses_a_receive(void **state)
{
	struct world *world = world_connected(state);
	struct pier_scatter unused = scatter_at(&world->b.area, 0, 10);
	struct pier_gather source = gather_at(&world->a.area, 6, 3000);
	struct pier_remote target = remote_at(&world->b.area, 4090, 3000);
	struct pier_remote nothing = remote_at(&world->b.area, 0, 0);
	struct pier_result result;
	struct pier_work receives[3];

	expect_ok(pier_channel_post_recv(world->b.channel, &unused, 1, &receives[0]));
	expect_ok(pier_channel_post_recv(world->b.channel, NULL, 0, &receives[1]));
	expect_ok(pier_channel_post_recv(world->b.channel, NULL, 0, &receives[2]));
	/* A write without immediate uses no receive. */
	expect_ok(pier_channel_write(world->a.channel, &source, 1, &target, PATIENT));
	expect_ok(test_channel_write_imm(world->a.channel, &source, 1, &target, 7,
					 PATIENT));
	expect_ok(test_channel_write_imm(world->a.channel, NULL, 0, &nothing, 0xffffffff,
					 PATIENT));
	result = expect_end(world->b.channel, receives[0], 0);
	assert_int_equal(result.opcode, PIER_OP_RECV_WRITE_IMM);
	assert_true(result.has_immediate);
	assert_int_equal(result.immediate, 7);
	assert_int_equal(result.byte_length, 3000);
	result = expect_end(world->b.channel, receives[1], 0);
	assert_int_equal(result.opcode, PIER_OP_RECV_WRITE_IMM);
	assert_int_equal(result.immediate, 0xffffffff);
	assert_int_equal(result.byte_length, 0);
	assert_int_equal(pier_channel_outstanding(world->b.channel), 1);
	image_copy(&world->b.area, 4090, &world->a.area, 6, 3000);
	world_expect(world);
}

/* The region covers a part of the buffer, and all other bytes must stay unchanged. */
static void region_of_part_of_buffer_is_respected(void **state)
{
	static const struct {
		size_t offset, length;
	} parts[] = { { 1, 1 },	    { 4095, 2 },     { 4096, 4096 },
		      { 77, 9999 }, { 8191, 65537 }, { AREA_LENGTH - 3, 3 } };
	struct world *world = world_connected(state);

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		size_t offset = parts[i].offset, length = parts[i].length;
		struct pier_gather source = gather_at(&world->a.area, 13, length);
		struct pier_remote target;
		struct pier_mr *part;

		expect_ok(pier_mr_reg_buffer(world->b.pd, world->b.area.buffer, offset,
					     length, PIER_ACCESS_SHARED,
					     PIER_POLICY_DIRECT, &part));
		expect_ok(pier_mr_remote(part, &target));
		assert_int_equal(target.length, length);
		expect_ok(pier_channel_write(world->a.channel, &source, 1, &target,
					     PATIENT));
		expect_ok(pier_mr_dereg(part));
		image_copy(&world->b.area, offset, &world->a.area, 13, length);
		world_expect(world);
	}
}

struct request {
	size_t from, to, length;
	struct pier_work work;
	bool read;
};

static void post_random(struct world *world, struct request *request, size_t lane)
{
	/* Lanes do not overlap, because simultaneous requests have no order. */
	size_t start = lane * 20000, half = 10000;

	request->read = test_random_below(&world->random, 2);
	request->length = test_random_below(&world->random, 5000);
	request->from = start + test_random_below(&world->random, half - 5000);
	request->to = start + half + test_random_below(&world->random, half - 5000);
	if (request->read) {
		struct pier_scatter target = scatter_at(&world->a.area, request->to,
							request->length);
		struct pier_remote source = remote_at(&world->b.area, request->from,
						      request->length);

		expect_ok(pier_channel_post_read(world->a.channel, &target, 1, &source,
						 &request->work));
		image_copy(&world->a.area, request->to, &world->b.area, request->from,
			   request->length);
	} else {
		struct pier_gather source = gather_at(&world->a.area, request->from,
						      request->length);
		struct pier_remote target = remote_at(&world->b.area, request->to,
						      request->length);

		expect_ok(pier_channel_post_write(world->a.channel, &source, 1, &target,
						  &request->work));
		image_copy(&world->b.area, request->to, &world->a.area, request->from,
			   request->length);
	}
}

static void random_requests_move_the_right_bytes(void **state)
{
	enum {
		ROUNDS = 40,
		LANES = 10
	};
	struct world *world = world_connected(state);
	struct request requests[LANES];

	for (int round = 0; round < ROUNDS; round++) {
		for (size_t lane = 0; lane < LANES; lane++)
			post_random(world, &requests[lane], lane);
		for (size_t lane = LANES; lane-- > 0;)
			expect_end(world->a.channel, requests[lane].work, 0);
		if (round % 8 == 0)
			world_expect(world);
	}
	world_expect(world);
}

int run_onesided_cases(void)
{
	const struct CMUnitTest cases[] = {
		world_case(write_arrives_unchanged),
		world_case(started_copy_is_written_to_the_peer),
		world_case(read_arrives_unchanged),
		world_case(writes_gather_and_reads_scatter),
		world_case(empty_write_and_read_succeed),
		world_case(longer_remote_is_partly_used),
		world_case(write_with_immediate_uses_a_receive),
		world_case(region_of_part_of_buffer_is_respected),
		world_case(random_requests_move_the_right_bytes),
	};

	return cmocka_run_group_tests_name("one-sided", cases, NULL, NULL);
}
