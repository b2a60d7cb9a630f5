/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "../support/memory_of.h"
#include "cases.h"
#include "world.h"

/* Shared receive queues, and receive pools. */

enum {
	PAIRS = 3,
	SLOTS = 12,
	LENGTH = 1001, /* of a slot: a multiple of nothing */
	ROUNDS = 12,
	FIRST = 2003, /* offset of the slots in the area of b */
	ELSEWHERE = 100000,
};

/* Channels from a to b besides those of the world. All of b use one receive queue. */
struct hub {
	struct world *world;
	struct pier_srq *srq;
	struct pier_channel *from[PAIRS], *to[PAIRS];
	uint32_t sent[PAIRS], arrived[PAIRS];
};

static struct pier_channel_attr patient_attr(void)
{
	struct pier_channel_attr attr = test_attr();

	attr.rnr_retry_count = 7;
	attr.min_rnr_timer = 1;
	return attr;
}

static void connect_pair(struct pier_channel *from, struct pier_channel *to)
{
	struct end a = { .channel = from }, b = { .channel = to };

	expect_ok(ends_connect(&a, &b));
}

static struct world *two_ends(void **state)
{
	struct world *world = world_for_channels(state);

	expect_ok(end_open(&world->a, test_device));
	expect_ok(end_open(&world->b, test_peer_device));
	area_shuffle(world, &world->a.area);
	area_shuffle(world, &world->b.area);
	return world;
}

static void add_pair(struct hub *hub, int i)
{
	struct pier_channel_attr attr = patient_attr();

	expect_ok(pier_channel_create(hub->world->a.pd, &attr, &hub->from[i]));
	attr.srq = hub->srq;
	/* The rest of its completion queue is for received messages. */
	attr.max_send_wr = 1;
	expect_ok(pier_channel_create(hub->world->b.pd, &attr, &hub->to[i]));
	connect_pair(hub->from[i], hub->to[i]);
	hub->sent[i] = hub->arrived[i] = 0;
}

static void remove_pair(struct hub *hub, int i)
{
	expect_ok(pier_channel_destroy(hub->to[i]));
	expect_ok(pier_channel_destroy(hub->from[i]));
	hub->to[i] = hub->from[i] = NULL;
}

static void skip_without_srq(int error)
{
	if (error == -EOPNOTSUPP)
		world_skip(pier_error_message());
	expect_ok(error);
}

static struct hub open_hub(void **state)
{
	struct pier_srq_attr attr;
	struct hub hub = { .world = two_ends(state) };

	pier_srq_attr_init(&attr);
	attr.max_wr = SLOTS;
	attr.max_sge = 2;
	skip_without_srq(pier_srq_create(hub.world->b.pd, &attr, &hub.srq));
	for (int i = 0; i < PAIRS; i++)
		add_pair(&hub, i);
	return hub;
}

static void close_hub(struct hub *hub)
{
	for (int i = 0; i < PAIRS; i++)
		remove_pair(hub, i);
	expect_ok(pier_srq_destroy(hub->srq));
	world_expect(hub->world);
}

static size_t slot_at(uintptr_t slot)
{
	return FIRST + (size_t)slot * LENGTH;
}

/* Posts two elements with the seam at an odd offset. */
static void post_slot(struct hub *hub, uintptr_t slot)
{
	struct pier_scatter halves[] = {
		scatter_at(&hub->world->b.area, slot_at(slot), 77),
		scatter_at(&hub->world->b.area, slot_at(slot) + 77, LENGTH - 77),
	};

	expect_ok(pier_srq_post_recv(hub->srq, halves, 2, (void *)slot));
}

static size_t source_of(uint32_t number)
{
	return number * 37 % 50000;
}

static uint32_t length_of(uint32_t number)
{
	return number * 331 % (LENGTH + 1);
}

/* The immediate data has the numbers of the pair and of the message. */
static void send_number(struct world *world, struct pier_channel *from, uint32_t pair,
			uint32_t number)
{
	struct pier_gather source = gather_at(&world->a.area, source_of(number),
					      length_of(number));

	expect_ok(test_channel_send_imm(from, &source, 1, pair << 16 | number, PATIENT));
}

static void arrived_at(struct world *world, size_t target,
		       const struct pier_result *result, uint32_t pair, uint32_t number)
{
	assert_int_equal(result->opcode, PIER_OP_RECV);
	assert_true(result->has_immediate);
	assert_int_equal(result->immediate, pair << 16 | number);
	assert_int_equal(result->byte_length, length_of(number));
	image_copy(&world->b.area, target, &world->a.area, source_of(number),
		   length_of(number));
}

static void take_from_pair(struct hub *hub, int pair)
{
	struct pier_result result = { 0 };

	expect_result(pier_message_wait(hub->to[pair], PATIENT, &result), 1);
	arrived_at(hub->world, slot_at((uintptr_t)result.context), &result,
		   (uint32_t)pair, hub->arrived[pair]++);
	post_slot(hub, (uintptr_t)result.context);
}

static void channels_share_receives(void **state)
{
	struct hub hub = open_hub(state);

	for (uintptr_t slot = 0; slot < SLOTS; slot++)
		post_slot(&hub, slot);
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < SLOTS; i++) {
			int pair = (int)test_random_below(&hub.world->random, PAIRS);

			send_number(hub.world, hub.from[pair], (uint32_t)pair,
				    hub.sent[pair]++);
		}
		for (int pair = PAIRS; pair-- > 0;) {
			while (hub.arrived[pair] < hub.sent[pair])
				take_from_pair(&hub, pair);
		}
		area_expect(&hub.world->b.area);
	}
	expect_result(pier_mr_dereg(hub.world->b.area.mr), -EBUSY);
	close_hub(&hub);
}

/* One channel gets messages for the whole queue before it is polled. */
static void one_channel_can_use_all_receives(void **state)
{
	struct hub hub = open_hub(state);
	struct pier_result result;

	for (int round = 0; round < 3; round++) {
		for (uintptr_t slot = 0; slot < SLOTS; slot++)
			expect_ok(pier_srq_post_recv(hub.srq, NULL, 0, (void *)slot));
		expect_result(pier_srq_post_recv(hub.srq, NULL, 0, NULL), -EAGAIN);
		for (uintptr_t slot = 0; slot < SLOTS; slot++)
			expect_ok(pier_channel_send(hub.from[round], NULL, 0, PATIENT));
		for (uintptr_t slot = 0; slot < SLOTS; slot++) {
			expect_result(pier_message_wait(hub.to[round], PATIENT, &result),
				      1);
			assert_int_equal((uintptr_t)result.context, slot);
			assert_int_equal(result.byte_length, 0);
		}
		expect_result(pier_message_wait(hub.to[round], 0, &result), 0);
		expect_result(pier_message_wait(hub.to[round], BRIEF, &result),
			      -ETIMEDOUT);
	}
	close_hub(&hub);
}

static void sender_retries_until_a_receive_is_posted(void **state)
{
	struct hub hub = open_hub(state);
	struct pier_gather source = gather_at(&hub.world->a.area, source_of(3),
					      length_of(3));
	struct pier_result result;
	struct pier_work work;

	hub.arrived[1] = 3;
	expect_ok(test_post_send_imm(hub.from[1], &source, 1, 1 << 16 | 3, &work));
	expect_result(pier_message_wait(hub.to[1], BRIEF, &result), -ETIMEDOUT);
	post_slot(&hub, 0);
	take_from_pair(&hub, 1);
	expect_end(hub.from[1], work, 0);
	close_hub(&hub);
}

/* The device may have written any part of the slot. */
static void accept_slot(struct world *world, size_t offset, size_t length)
{
	expect_ok(pier_buffer_copy_from(world->b.area.buffer, offset,
					world->b.area.image + offset, length));
}

static void expect_too_long(struct world *world, struct pier_channel *from, size_t length)
{
	struct pier_gather source = gather_at(&world->a.area, 0, length);
	struct pier_work work;

	expect_ok(pier_channel_post_send(from, &source, 1, &work));
	expect_vague_end(from, work, -EMSGSIZE, -EREMOTEIO);
}

/* The other channels keep working, and so does a new one. */
static void error_breaks_only_its_channel(void **state)
{
	struct hub hub = open_hub(state);
	struct pier_result result;
	int error;

	for (uintptr_t slot = 0; slot < SLOTS; slot++)
		post_slot(&hub, slot);
	send_number(hub.world, hub.from[0], 0, hub.sent[0]++);
	expect_too_long(hub.world, hub.from[0], LENGTH + 1);
	take_from_pair(&hub, 0);
	expect_result(pier_message_wait(hub.to[0], PATIENT, &result), 1);
	error = result.error;
	assert_true(error == -EMSGSIZE || (test_vague && error == -EIO));
	accept_slot(hub.world, slot_at((uintptr_t)result.context), LENGTH);
	post_slot(&hub, (uintptr_t)result.context);
	expect_result(pier_message_wait(hub.to[0], 0, &result), -EPIPE);
	for (int round = 0; round < ROUNDS; round++) {
		send_number(hub.world, hub.from[1], 1, hub.sent[1]++);
		take_from_pair(&hub, 1);
	}
	remove_pair(&hub, 0);
	add_pair(&hub, 0);
	send_number(hub.world, hub.from[0], 0, hub.sent[0]++);
	take_from_pair(&hub, 0);
	close_hub(&hub);
}

static void destroying_channel_loses_no_receive(void **state)
{
	struct hub hub = open_hub(state);

	for (uintptr_t slot = 0; slot < SLOTS; slot++)
		post_slot(&hub, slot);
	for (int round = 0; round < 3; round++) {
		/* One message is polled but not taken, the other not even polled. */
		send_number(hub.world, hub.from[0], 0, 1);
		assert_true(pier_channel_poll(hub.to[0]) >= 0);
		send_number(hub.world, hub.from[0], 0, 1);
		remove_pair(&hub, 0);
		expect_result(pier_srq_post_recv(hub.srq, NULL, 0, NULL), -EAGAIN);
		add_pair(&hub, 0);
		/* The messages were written to unknown slots. */
		for (uintptr_t slot = 0; slot < SLOTS; slot++)
			accept_slot(hub.world, slot_at(slot), LENGTH);
		/* All receives are still posted. */
		for (int i = 0; i < SLOTS; i++)
			send_number(hub.world, hub.from[1], 1, hub.sent[1]++);
		for (int i = 0; i < SLOTS; i++)
			take_from_pair(&hub, 1);
	}
	close_hub(&hub);
}

/* The channel has no outstanding request that would be flushed. */
static void wait_on_stopped_channel_fails(void **state)
{
	struct hub hub = open_hub(state);
	struct pier_result result;

	post_slot(&hub, 0);
	send_number(hub.world, hub.from[0], 0, hub.sent[0]++);
	expect_ok(pier_channel_cancel(hub.to[0]));
	take_from_pair(&hub, 0);
	expect_result(pier_message_wait(hub.to[0], PATIENT, &result), -EPIPE);
	close_hub(&hub);
}

/* A reset removes unpolled completions from the completion queue. */
static void reset_keeps_arrived_messages(void **state)
{
	struct hub hub = open_hub(state);

	for (uintptr_t slot = 0; slot < SLOTS; slot++)
		post_slot(&hub, slot);
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < SLOTS / 2; i++)
			send_number(hub.world, hub.from[0], 0, hub.sent[0]++);
		expect_ok(pier_channel_reset(hub.from[0]));
		expect_ok(pier_channel_reset(hub.to[0]));
		expect_result(pier_srq_post_recv(hub.srq, NULL, 0, NULL), -EAGAIN);
		for (int i = 0; i < SLOTS / 2; i++)
			take_from_pair(&hub, 0);
		area_expect(&hub.world->b.area);
		connect_pair(hub.from[0], hub.to[0]);
	}
	/* All receives are still posted. */
	for (int i = 0; i < SLOTS; i++)
		send_number(hub.world, hub.from[0], 0, hub.sent[0]++);
	for (int i = 0; i < SLOTS; i++)
		take_from_pair(&hub, 0);
	close_hub(&hub);
}

/* Pools of one channel and shared pools. */

static struct pier_recv_pool_attr pool_attr(const struct world *world)
{
	struct pier_recv_pool_attr attr;

	pier_recv_pool_attr_init(&attr);
	attr.count = SLOTS;
	attr.length = LENGTH;
	attr.mr = world->b.area.mr;
	attr.offset = FIRST;
	return attr;
}

static struct world *connected_for_pool(void **state)
{
	struct pier_channel_attr attr = patient_attr();

	return world_connected_with(state, &attr);
}

static struct pier_recv_pool *pool_of_b(const struct world *world)
{
	struct pier_recv_pool_attr attr = pool_attr(world);
	struct pier_recv_pool *pool = NULL;

	expect_ok(test_recv_pool_create(world->b.pd, world->b.channel, &attr, &pool));
	return pool;
}

static struct pier_pool_message take_pooled(struct world *world,
					    struct pier_recv_pool *pool, uint32_t pair,
					    uint32_t number)
{
	struct pier_pool_message message = { 0 };

	expect_result(pier_recv_pool_wait(pool, PATIENT, &message), 1);
	assert_int_equal(message.length, length_of(number));
	assert_int_equal(message.offset, slot_at(message.slot));
	assert_int_equal(message.iova, area_at(&world->b.area, message.offset));
	arrived_at(world, message.offset, &message.result, pair, number);
	return message;
}

/* Several messages are held at a time, and released in any order. */
static void pool_reposts_its_slots(void **state)
{
	struct world *world = connected_for_pool(state);
	struct pier_recv_pool *pool = pool_of_b(world);
	struct pier_pool_message held[SLOTS];
	uint32_t sent = 0, taken = 0, count = 0;

	for (int round = 0; round < 4 * ROUNDS; round++) {
		uint32_t more = (uint32_t)test_random_below(&world->random,
							    SLOTS - count + 1);
		uint32_t left = sent + more;

		/* Polling posts the released slots that wait for a full batch. */
		expect_result(pier_recv_pool_wait(pool, 0, &held[count]), 0);
		while (sent < left)
			send_number(world, world->a.channel, 0, sent++);
		while (taken < sent) {
			held[count] = take_pooled(world, pool, 0, taken);
			assert_int_equal(held[count++].sequence, taken++);
		}
		area_expect(&world->b.area);
		for (uint32_t i = count; i-- > 0;) {
			if (test_random_below(&world->random, 2))
				continue;
			expect_ok(pier_recv_pool_release(pool, &held[i]));
			held[i] = held[--count];
		}
	}
	expect_result(pier_mr_dereg(world->b.area.mr), -EBUSY);
	if (count > 0)
		expect_result(pier_recv_pool_destroy(pool), -EBUSY);
	while (count > 0)
		expect_ok(pier_recv_pool_release(pool, &held[--count]));
	expect_ok(pier_recv_pool_destroy(pool));
	world_expect(world);
}

static void pool_receives_writes_with_immediate(void **state)
{
	struct world *world = connected_for_pool(state);
	struct pier_recv_pool *pool = pool_of_b(world);
	struct pier_remote remote = remote_at(&world->b.area, ELSEWHERE, 5000);
	struct pier_gather source = gather_at(&world->a.area, 11, 5000);
	struct pier_pool_message message;

	for (uint32_t i = 0; i < 2 * SLOTS; i++) {
		expect_ok(test_channel_write_imm(world->a.channel, &source, 1, &remote, i,
						 PATIENT));
		expect_result(pier_recv_pool_wait(pool, PATIENT, &message), 1);
		assert_int_equal(message.result.opcode, PIER_OP_RECV_WRITE_IMM);
		assert_int_equal(message.length, 0);
		assert_int_equal(message.result.immediate, i);
		expect_ok(pier_recv_pool_release(pool, &message));
	}
	image_copy(&world->b.area, ELSEWHERE, &world->a.area, 11, 5000);
	expect_ok(pier_recv_pool_destroy(pool));
	world_expect(world);
}

/*
 * The pool has its own memory. One message is as long as a slot, the next one byte
 * longer.
 */
static void too_long_message_fails_the_pool(void **state)
{
	struct world *world = connected_for_pool(state);
	struct pier_recv_pool_attr attr;
	struct pier_gather source = gather_at(&world->a.area, 5, LENGTH);
	struct pier_pool_message messages[2], none;
	struct pier_recv_pool *pool = NULL;

	pier_recv_pool_attr_init(&attr);
	attr.length = LENGTH;
	attr.spec = test_is_nic(test_backend) ? "host" : test_backend;
	expect_ok(test_recv_pool_create(world->b.pd, world->b.channel, &attr, &pool));
	expect_ok(pier_channel_send(world->a.channel, &source, 1, PATIENT));
	expect_ok(pier_channel_send(world->a.channel, NULL, 0, PATIENT));
	expect_too_long(world, world->a.channel, LENGTH + 1);
	for (int i = 0; i < 2; i++)
		expect_result(pier_recv_pool_wait(pool, PATIENT, &messages[i]), 1);
	assert_int_equal(messages[0].length, LENGTH);
	assert_int_equal(messages[1].length, 0);
	if (messages[0].pointer)
		assert_memory_equal(messages[0].pointer, world->a.area.image + 5, LENGTH);
	for (int i = 0; i < 2; i++)
		expect_result(pier_recv_pool_wait(pool, PATIENT, &none), -EPIPE);
	assert_ptr_equal(none.channel, world->b.channel);
	for (int i = 0; i < 2; i++)
		expect_ok(pier_recv_pool_release(pool, &messages[i]));
	expect_ok(pier_recv_pool_destroy(pool));
	world_expect(world);
}

/* Messages that the peer sends afterwards do not arrive. */
static void destroyed_pool_receives_nothing(void **state)
{
	struct world *world = connected_for_pool(state);
	struct pier_recv_pool *pool = pool_of_b(world);
	struct pier_gather source = gather_at(&world->a.area, 0, 100);

	expect_ok(pier_recv_pool_destroy(pool));
	assert_int_equal(pier_channel_outstanding(world->b.channel), 0);
	assert_true(pier_channel_send(world->a.channel, &source, 1, PATIENT) < 0);
	world_expect(world);
}

static void pool_wait_times_out(void **state)
{
	struct world *world = connected_for_pool(state);
	struct pier_recv_pool *pool = pool_of_b(world);
	struct pier_pool_message message;

	expect_result(pier_recv_pool_wait(pool, 0, &message), 0);
	expect_result(pier_recv_pool_wait(pool, 0, &message), 0);
	expect_result(pier_recv_pool_wait(pool, BRIEF, &message), -ETIMEDOUT);
	send_number(world, world->a.channel, 0, 7);
	message = take_pooled(world, pool, 0, 7);
	expect_ok(pier_channel_destroy(world->b.channel));
	world->b.channel = NULL;
	expect_ok(pier_recv_pool_release(pool, &message));
	expect_ok(pier_recv_pool_destroy(pool));
	world_expect(world);
}

struct echo {
	struct hub hub;
	uint32_t count;
};

static void answer(struct echo *echo, const struct pier_pool_message *message)
{
	uint32_t pair = message->result.immediate >> 16;

	assert_ptr_equal(message->channel, echo->hub.to[pair]);
	arrived_at(echo->hub.world, message->offset, &message->result, pair,
		   echo->hub.arrived[pair]++);
	echo->count++;
	expect_ok(test_channel_send_imm(message->channel, NULL, 0,
					message->result.immediate, PATIENT));
}

/* Sends a message of that pair and receives its answer. */
static void ask(struct echo *echo, struct pier_recv_pool *pool, uint32_t pair)
{
	struct hub *hub = &echo->hub;
	struct pier_pool_message message;
	struct pier_result result;
	struct pier_work work;

	expect_ok(pier_channel_post_recv(hub->from[pair], NULL, 0, &work));
	send_number(hub->world, hub->from[pair], pair, hub->sent[pair]++);
	expect_result(pier_recv_pool_wait(pool, PATIENT, &message), 1);
	answer(echo, &message);
	expect_ok(pier_recv_pool_release(pool, &message));
	result = expect_end(hub->from[pair], work, 0);
	assert_int_equal(result.immediate, pair << 16 | (hub->arrived[pair] - 1));
}

static void pool_serves_many_channels(void **state)
{
	struct echo echo = { .hub.world = two_ends(state) };
	struct pier_recv_pool_attr attr = pool_attr(echo.hub.world);
	struct pier_recv_pool *pool = NULL;
	struct pier_pool_message message;

	skip_without_srq(pier_recv_pool_create(echo.hub.world->b.pd, &attr, &pool));
	echo.hub.srq = pier_recv_pool_srq(pool);
	for (int i = 0; i < PAIRS; i++)
		add_pair(&echo.hub, i);
	expect_result(pier_recv_pool_wait(pool, 0, &message), 0);
	for (int i = 0; i < ROUNDS * SLOTS; i++)
		ask(&echo, pool,
		    (uint32_t)test_random_below(&echo.hub.world->random, PAIRS));
	assert_int_equal(echo.count, ROUNDS * SLOTS);
	/* One channel is destroyed while it has an untaken message. The others stay. */
	send_number(echo.hub.world, echo.hub.from[1], 1, 0);
	remove_pair(&echo.hub, 1);
	for (uintptr_t slot = 0; slot < SLOTS; slot++)
		accept_slot(echo.hub.world, slot_at(slot), LENGTH);
	expect_too_long(echo.hub.world, echo.hub.from[2], LENGTH + 1);
	expect_result(pier_recv_pool_wait(pool, PATIENT, &message), -EPIPE);
	assert_ptr_equal(message.channel, echo.hub.to[2]);
	for (uintptr_t slot = 0; slot < SLOTS; slot++)
		accept_slot(echo.hub.world, slot_at(slot), LENGTH);
	for (int i = 0; i < 2 * SLOTS; i++)
		ask(&echo, pool, 0);
	expect_result(pier_recv_pool_destroy(pool), -EBUSY);
	remove_pair(&echo.hub, 0);
	remove_pair(&echo.hub, 2);
	expect_ok(pier_recv_pool_destroy(pool));
	world_expect(echo.hub.world);
}

int run_receive_cases(void)
{
	const struct CMUnitTest cases[] = {
		world_case(channels_share_receives),
		world_case(one_channel_can_use_all_receives),
		world_case(sender_retries_until_a_receive_is_posted),
		world_case(error_breaks_only_its_channel),
		world_case(destroying_channel_loses_no_receive),
		world_case(wait_on_stopped_channel_fails),
		world_case(reset_keeps_arrived_messages),
		world_case(pool_reposts_its_slots),
		world_case(pool_receives_writes_with_immediate),
		world_case(too_long_message_fails_the_pool),
		world_case(destroyed_pool_receives_nothing),
		world_case(pool_wait_times_out),
		world_case(pool_serves_many_channels),
	};

	return cmocka_run_group_tests_name("receives", cases, NULL, NULL);
}
