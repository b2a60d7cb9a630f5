/* SPDX-License-Identifier: BSD-3-Clause */
#include "cases.h"
#include "world.h"

/* Sends and receives. */

static const size_t lengths[] = { 1, 2, 7, 511, 4095, 4096, 4097, 65536, 100001 };
enum {
	LENGTHS = sizeof(lengths) / sizeof(lengths[0])
};

static void message_arrives_unchanged(void **state)
{
	struct world *world = world_connected(state);

	for (size_t i = 0; i < LENGTHS; i++) {
		size_t from = 3 + i, to = 4093 + 5 * i;
		struct pier_gather source = gather_at(&world->a.area, from, lengths[i]);
		struct pier_scatter target = scatter_at(&world->b.area, to, lengths[i]);
		struct pier_result result;
		struct pier_work receive;

		expect_ok(pier_channel_post_recv(world->b.channel, &target, 1, &receive));
		expect_ok(pier_channel_send(world->a.channel, &source, 1, PATIENT));
		result = expect_end(world->b.channel, receive, 0);
		assert_int_equal(result.opcode, PIER_OP_RECV);
		assert_int_equal(result.byte_length, lengths[i]);
		assert_false(result.has_immediate);
		image_copy(&world->b.area, to, &world->a.area, from, lengths[i]);
		world_expect(world);
	}
}

static void immediate_arrives(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather source = gather_at(&world->a.area, 1, 99);
	struct pier_scatter target = scatter_at(&world->b.area, 7, 99);
	struct pier_result result;
	struct pier_work receive;

	expect_ok(pier_channel_post_recv(world->b.channel, &target, 1, &receive));
	expect_ok(
		test_channel_send_imm(world->a.channel, &source, 1, 0x80a1b2c3, PATIENT));
	result = expect_end(world->b.channel, receive, 0);
	assert_int_equal(result.opcode, PIER_OP_RECV);
	assert_int_equal(result.byte_length, 99);
	assert_true(result.has_immediate);
	assert_int_equal(result.immediate, 0x80a1b2c3);
	image_copy(&world->b.area, 7, &world->a.area, 1, 99);
	world_expect(world);
}

static void empty_message_arrives(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather nothing = gather_at(&world->a.area, 5, 0);
	struct pier_scatter target = scatter_at(&world->b.area, 0, 64);
	struct pier_result result;
	struct pier_work receive;

	for (int elements = 0; elements < 2; elements++) {
		expect_ok(pier_channel_post_recv(world->b.channel, &target, 1, &receive));
		expect_ok(
			pier_channel_send(world->a.channel, &nothing, elements, PATIENT));
		result = expect_end(world->b.channel, receive, 0);
		assert_int_equal(result.byte_length, 0);
		assert_false(result.has_immediate);

		expect_ok(pier_channel_post_recv(world->b.channel, NULL, 0, &receive));
		expect_ok(test_channel_send_imm(world->a.channel, &nothing, elements, 0,
						PATIENT));
		result = expect_end(world->b.channel, receive, 0);
		assert_int_equal(result.byte_length, 0);
		assert_true(result.has_immediate);
		assert_int_equal(result.immediate, 0);
	}
	world_expect(world);
}

static void messages_gather_and_scatter(void **state)
{
	static const size_t segments[4] = { 1, 4096, 0, 5033 };
	static const size_t holes[3] = { 4000, 30, 6000 };
	struct world *world = world_connected(state);
	uint8_t joined[9130], *end = joined;
	struct pier_scatter target[3];
	struct pier_gather source[4];
	struct pier_result result;
	struct pier_work receive;
	size_t left;

	for (size_t i = 0; i < 4; i++) {
		source[i] = gather_at(&world->a.area, 20001 * i + 1, segments[i]);
		memcpy(end, world->a.area.image + 20001 * i + 1, segments[i]);
		end += segments[i];
	}
	left = (size_t)(end - joined);
	assert_int_equal(left, sizeof(joined));
	for (size_t i = 0; i < 3; i++)
		target[i] = scatter_at(&world->b.area, 30007 * (3 - i), holes[i]);
	expect_ok(pier_channel_post_recv(world->b.channel, target, 3, &receive));
	expect_ok(pier_channel_send(world->a.channel, source, 4, PATIENT));
	result = expect_end(world->b.channel, receive, 0);
	assert_int_equal(result.byte_length, left);
	for (size_t i = 0; i < 3; i++) {
		size_t part = left < holes[i] ? left : holes[i];

		memcpy(world->b.area.image + 30007 * (3 - i),
		       joined + (sizeof(joined) - left), part);
		left -= part;
	}
	world_expect(world);
}

static void short_message_leaves_rest_unchanged(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather source = gather_at(&world->a.area, 11, 100);
	struct pier_scatter target = scatter_at(&world->b.area, 13, 10000);
	struct pier_work receive;

	expect_ok(pier_channel_post_recv(world->b.channel, &target, 1, &receive));
	expect_ok(pier_channel_send(world->a.channel, &source, 1, PATIENT));
	assert_int_equal(expect_end(world->b.channel, receive, 0).byte_length, 100);
	image_copy(&world->b.area, 13, &world->a.area, 11, 100);
	world_expect(world);
}

/* Fills both queues and polls the handles in the opposite order. */
static void results_are_kept_until_polled(void **state)
{
	enum {
		DEPTH = 16,
		SEGMENT = 1001
	};
	struct world *world = world_connected(state);
	struct pier_work sends[DEPTH], receives[DEPTH];

	for (size_t i = 0; i < DEPTH; i++) {
		struct pier_scatter target = scatter_at(&world->b.area, i * SEGMENT + 1,
							SEGMENT);

		expect_ok(pier_channel_post_recv(world->b.channel, &target, 1,
						 &receives[i]));
	}
	for (size_t i = 0; i < DEPTH; i++) {
		struct pier_gather source = gather_at(&world->a.area, i * SEGMENT,
						      SEGMENT - i);

		expect_ok(test_post_send_imm(world->a.channel, &source, 1, (uint32_t)i,
					     &sends[i]));
		image_copy(&world->b.area, i * SEGMENT + 1, &world->a.area, i * SEGMENT,
			   SEGMENT - i);
	}
	assert_true(pier_channel_outstanding(world->b.channel) <= DEPTH);
	for (size_t i = DEPTH; i-- > 0;) {
		struct pier_result result = expect_end(world->b.channel, receives[i], 0);

		assert_int_equal(result.immediate, i);
		assert_int_equal(result.byte_length, SEGMENT - i);
		expect_end(world->a.channel, sends[i], 0);
	}
	assert_int_equal(pier_channel_outstanding(world->a.channel), 0);
	assert_int_equal(pier_channel_outstanding(world->b.channel), 0);
	world_expect(world);
}

static void both_directions_at_once(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather from_a = gather_at(&world->a.area, 0, 50000);
	struct pier_gather from_b = gather_at(&world->b.area, 0, 60000);
	struct pier_scatter to_a = scatter_at(&world->a.area, 100000, 60000);
	struct pier_scatter to_b = scatter_at(&world->b.area, 100001, 50000);
	struct pier_work work[4];

	expect_ok(pier_channel_post_recv(world->a.channel, &to_a, 1, &work[0]));
	expect_ok(pier_channel_post_recv(world->b.channel, &to_b, 1, &work[1]));
	expect_ok(pier_channel_post_send(world->a.channel, &from_a, 1, &work[2]));
	expect_ok(pier_channel_post_send(world->b.channel, &from_b, 1, &work[3]));
	for (int i = 0; i < 4; i++)
		expect_end(i % 2 ? world->b.channel : world->a.channel, work[i], 0);
	image_copy(&world->a.area, 100000, &world->b.area, 0, 60000);
	image_copy(&world->b.area, 100001, &world->a.area, 0, 50000);
	world_expect(world);
}

/* The device retries the send until the blocking receiver has posted. */
static void send_waits_for_late_receive(void **state)
{
	struct pier_channel_attr attr = test_attr();
	struct pier_scatter target;
	struct pier_gather source;
	struct pier_result result;
	struct world *world;
	struct pier_work send;

	attr.rnr_retry_count = 7;
	attr.min_rnr_timer = 1;
	world = world_connected_with(state, &attr);
	source = gather_at(&world->a.area, 17, 70001);
	target = scatter_at(&world->b.area, 19, 70001);
	expect_ok(pier_channel_post_send(world->a.channel, &source, 1, &send));
	for (int i = 0; i < 100; i++)
		expect_result(pier_work_poll(world->a.channel, send, &result), 0);
	expect_ok(pier_channel_recv(world->b.channel, &target, 1, PATIENT, &result));
	assert_int_equal(result.byte_length, 70001);
	expect_end(world->a.channel, send, 0);
	image_copy(&world->b.area, 19, &world->a.area, 17, 70001);
	world_expect(world);
}

/* Receives may be posted before the channel is connected. */
static void receives_are_posted_before_connecting(void **state)
{
	struct world *world = world_prepared(state, NULL);
	struct pier_gather source = gather_at(&world->a.area, 0, 1000);
	struct pier_scatter target = scatter_at(&world->b.area, 1, 1000);
	struct pier_work receive;

	expect_ok(pier_channel_post_recv(world->b.channel, &target, 1, &receive));
	expect_ok(ends_connect(&world->a, &world->b));
	expect_ok(pier_channel_send(world->a.channel, &source, 1, PATIENT));
	expect_end(world->b.channel, receive, 0);
	image_copy(&world->b.area, 1, &world->a.area, 0, 1000);
	world_expect(world);
}

static void inline_send_copies_at_posting(void **state)
{
	struct pier_channel_attr attr = test_attr();
	struct pier_scatter target;
	struct pier_gather source;
	struct pier_work receive;
	struct world *world;
	void *pointer;

	attr.max_inline = 64;
	world = world_connected_with(state, &attr);
	/* Inline data can only be copied from host memory at its own address. */
	if (pier_buffer_map(world->a.area.buffer, &pointer) != 0 ||
	    (uintptr_t)pointer != area_at(&world->a.area, 0))
		world_skip("this memory is not at an address of the CPU");
	source = gather_at(&world->a.area, 3, 64);
	target = scatter_at(&world->b.area, 5, 64);
	expect_ok(pier_channel_post_recv(world->b.channel, &target, 1, &receive));
	expect_ok(pier_channel_send(world->a.channel, &source, 1, PATIENT));
	expect_end(world->b.channel, receive, 0);
	image_copy(&world->b.area, 5, &world->a.area, 3, 64);
	world_expect(world);
}

/* Whether the CPU reaches the memory or not, and by each way of posting. */
static void short_messages_leave_any_memory(void **state)
{
	struct pier_channel_attr attr = test_attr();
	struct pier_request request = { .opcode = PIER_OP_SEND };
	struct pier_gather source[2];
	struct pier_scatter target;
	struct pier_work receive;
	struct world *world;

	attr.max_inline = 64;
	world = world_connected_with(state, &attr);
	source[0] = gather_at(&world->a.area, 3, 8);
	source[1] = gather_at(&world->a.area, 30, 8);
	request.gather = source;
	for (request.num_sge = 1; request.num_sge <= 2; request.num_sge++) {
		target = scatter_at(&world->b.area, 5, 16);
		expect_ok(pier_channel_post_recv(world->b.channel, &target, 1, &receive));
		expect_ok(pier_channel_send(world->a.channel, source, request.num_sge,
					    PATIENT));
		expect_end(world->b.channel, receive, 0);
		expect_ok(pier_channel_post_recv(world->b.channel, &target, 1, &receive));
		expect_ok(pier_channel_post_batch(world->a.channel, &request, 1, NULL));
		expect_end(world->b.channel, receive, 0);
	}
	image_copy(&world->b.area, 5, &world->a.area, 3, 8);
	image_copy(&world->b.area, 13, &world->a.area, 30, 8);
	world_expect(world);
}

int run_message_cases(void)
{
	const struct CMUnitTest cases[] = {
		world_case(message_arrives_unchanged),
		world_case(immediate_arrives),
		world_case(empty_message_arrives),
		world_case(messages_gather_and_scatter),
		world_case(short_message_leaves_rest_unchanged),
		world_case(results_are_kept_until_polled),
		world_case(both_directions_at_once),
		world_case(send_waits_for_late_receive),
		world_case(receives_are_posted_before_connecting),
		world_case(inline_send_copies_at_posting),
		world_case(short_messages_leave_any_memory),
	};

	return cmocka_run_group_tests_name("messages", cases, NULL, NULL);
}
