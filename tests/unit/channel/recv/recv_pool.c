/* SPDX-License-Identifier: BSD-3-Clause */
/* Receive pools. The NIC completes what the test says. */
#include "tests/support/cmocka.h"
#include "tests/support/requests.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"
#include "tests/support/random.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <pier/pier.h>

#include "channel/recv/recv_pool.h"
#include "nic/nic.h"

enum {
	COUNT = 8,
	LENGTH = 32,
	SHARED = 1, /* a pool with a shared receive queue */
	OWN = 0,
};

static const struct pier_endpoint peer = {
	.qpn = 0x55,
	.link_layer = PIER_LINK_ETHERNET,
	.gid = { 0xfd, 1 },
	.max_rd_atomic = 4,
};

struct fixture {
	struct test_census before;
	bool shared;
	struct pier_recv_pool_attr attr;
	struct pier_recv_pool *pool;
	struct pier_channel *channel;
};

static struct pier_channel *make_channel(struct pier_recv_pool *pool, uint32_t depth)
{
	struct pier_channel_attr attr;
	struct pier_channel *channel = NULL;

	pier_channel_attr_init(&attr);
	attr.max_send_wr = 2;
	attr.max_recv_wr = depth;
	attr.max_send_sge = attr.max_recv_sge = 1;
	attr.srq = pool ? pier_recv_pool_srq(pool) : NULL;
	expect_ok(pier_channel_create(&fake.pd, &attr, &channel));
	expect_ok(pier_channel_connect(channel, &peer));
	return channel;
}

static struct pier_recv_pool_attr usual(void)
{
	struct pier_recv_pool_attr attr;

	pier_recv_pool_attr_init(&attr);
	attr.count = COUNT;
	attr.length = LENGTH;
	return attr;
}

static struct fixture open_with(bool shared, const struct pier_recv_pool_attr *attr,
				uint32_t depth)
{
	struct fixture fixture = { .shared = shared, .attr = *attr };

	fake_reset();
	fixture.before = test_take_census();
	if (shared) {
		expect_ok(pier_recv_pool_create(&fake.pd, attr, &fixture.pool));
		fixture.channel = make_channel(fixture.pool, depth);
	} else {
		fixture.channel = make_channel(NULL, depth);
		expect_ok(test_recv_pool_create(&fake.pd, fixture.channel, attr,
						&fixture.pool));
	}
	return fixture;
}

static struct fixture open_fixture(bool shared)
{
	struct pier_recv_pool_attr attr = usual();

	return open_with(shared, &attr, COUNT);
}

static void close_fixture(struct fixture *fixture)
{
	if (fixture->shared)
		expect_ok(pier_channel_destroy(fixture->channel));
	expect_ok(pier_recv_pool_destroy(fixture->pool));
	if (!fixture->shared)
		expect_ok(pier_channel_destroy(fixture->channel));
	assert_int_equal(atomic_load(&fake.pd.children), 0);
	assert_int_equal(fake.srqs + fake.qps + fake.cqs + fake.channels + fake.mrs, 0);
	test_assert_census(&fixture->before);
}

static uint64_t *ids_of(const struct fixture *fixture)
{
	return fixture->shared ? fake.shared_ids : fake.recv_ids;
}

/* Receives that the device holds. */
static int posted(const struct fixture *fixture)
{
	return fixture->shared ? fake.shared : fake.recvs;
}

/* The next message arrives and writes these bytes into the slot that it uses. */
static void arrive(const struct fixture *fixture, uint32_t length)
{
	assert_true(posted(fixture) > 0);
	fake_complete(ids_of(fixture)[0], IBV_WC_SUCCESS, IBV_WC_RECV, length);
}

static struct pier_pool_message expect_next(const struct fixture *fixture,
					    uint32_t length)
{
	struct pier_pool_message message = { 0 };

	expect_result(pier_recv_pool_wait(fixture->pool, 0, &message), 1);
	assert_ptr_equal(message.channel, fixture->channel);
	assert_int_equal(message.length, length);
	assert_int_equal(message.result.error, 0);
	assert_int_equal(message.offset, message.slot * LENGTH);
	assert_int_equal(message.iova, pier_mr_iova(message.mr) + message.offset);
	assert_int_equal((uintptr_t)message.pointer, message.iova);
	return message;
}

static void expect_none(const struct fixture *fixture)
{
	struct pier_pool_message message = { .slot = 77 };

	expect_result(pier_recv_pool_wait(fixture->pool, 0, &message), 0);
	assert_int_equal(message.slot, 77);
}

static void on_both(void (*body)(bool shared))
{
	body(OWN);
	body(SHARED);
}

static void posts_all_at_once_body(bool shared)
{
	struct fixture fixture = open_fixture(shared);

	assert_int_equal(posted(&fixture), COUNT);
	assert_int_equal(fake.recv_doorbells, 1);
	assert_int_equal(fake.last_mr.length, COUNT * LENGTH);
	assert_int_equal(fake.last_mr_access, PIER_ACCESS_LOCAL_WRITE);
	assert_int_equal(fake.last_recv_sge.length, LENGTH);
	assert_int_equal(fake.last_recv_sge.addr,
			 fake.last_mr_iova + (COUNT - 1) * LENGTH);
	assert_int_equal(fake.last_recv_sge.lkey, fake.last_mr.lkey);
	if (shared)
		assert_int_equal(fake.cq->cqe, 2 + COUNT);
	else
		assert_null(pier_recv_pool_srq(fixture.pool));
	close_fixture(&fixture);
}

static void posts_all_slots_at_once(void **state)
{
	(void)state;
	on_both(posts_all_at_once_body);
}

static void hands_out_in_order_body(bool shared)
{
	struct fixture fixture = open_fixture(shared);
	struct pier_pool_message message;

	expect_none(&fixture);
	for (uint32_t i = 0; i < 5 * COUNT; i++) {
		/* Empty, as long as a slot, and lengths between. */
		uint32_t length = i % (LENGTH + 1);

		arrive(&fixture, length);
		message = expect_next(&fixture, length);
		assert_int_equal(message.sequence, i);
		expect_none(&fixture);
		expect_ok(pier_recv_pool_release(fixture.pool, &message));
		expect_result(pier_recv_pool_release(fixture.pool, &message), -ESTALE);
	}
	close_fixture(&fixture);
}

static void delivers_in_order(void **state)
{
	(void)state;
	on_both(hands_out_in_order_body);
}

static void tells_immediates_body(bool shared)
{
	struct fixture fixture = open_fixture(shared);
	struct pier_pool_message message;

	fake_complete_imm(ids_of(&fixture)[0], IBV_WC_RECV, 5, htonl(0x80000001));
	message = expect_next(&fixture, 5);
	assert_true(message.result.has_immediate);
	assert_int_equal(message.result.immediate, 0x80000001);
	expect_ok(pier_recv_pool_release(fixture.pool, &message));
	/* A write, whose bytes went elsewhere. */
	fake_complete_imm(ids_of(&fixture)[0], IBV_WC_RECV_RDMA_WITH_IMM, 9999, htonl(7));
	message = expect_next(&fixture, 0);
	assert_int_equal(message.result.opcode, PIER_OP_RECV_WRITE_IMM);
	assert_int_equal(message.result.byte_length, 9999);
	assert_int_equal(message.result.immediate, 7);
	expect_ok(pier_recv_pool_release(fixture.pool, &message));
	close_fixture(&fixture);
}

static void reports_immediate_data(void **state)
{
	(void)state;
	on_both(tells_immediates_body);
}

/* Two of eight slots wait for each other, unless there is no message. */
static void posts_in_batches_body(bool shared)
{
	struct fixture fixture = open_fixture(shared);
	struct pier_pool_message messages[COUNT];
	int doorbells = fake.recv_doorbells;

	for (int i = 0; i < 4; i++)
		arrive(&fixture, 1);
	for (int i = 0; i < 4; i++)
		messages[i] = expect_next(&fixture, 1);
	expect_ok(pier_recv_pool_release(fixture.pool, &messages[3]));
	assert_int_equal(fake.recv_doorbells, doorbells);
	expect_ok(pier_recv_pool_release(fixture.pool, &messages[1]));
	assert_int_equal(fake.recv_doorbells, doorbells + 1);
	assert_int_equal(posted(&fixture), COUNT - 2);
	expect_ok(pier_recv_pool_release(fixture.pool, &messages[2]));
	assert_int_equal(posted(&fixture), COUNT - 2);
	expect_none(&fixture);
	assert_int_equal(fake.recv_doorbells, doorbells + 2);
	assert_int_equal(posted(&fixture), COUNT - 1);
	expect_ok(pier_recv_pool_release(fixture.pool, &messages[0]));
	close_fixture(&fixture);
}

static void reposts_slots_in_batches(void **state)
{
	(void)state;
	on_both(posts_in_batches_body);
}

/* If the user holds all slots, the first one released is posted at once. */
static void posts_the_last_at_once_body(bool shared)
{
	struct fixture fixture = open_fixture(shared);
	struct pier_pool_message messages[COUNT];

	for (int i = 0; i < COUNT; i++)
		arrive(&fixture, 1);
	for (int i = 0; i < COUNT; i++)
		messages[i] = expect_next(&fixture, 1);
	assert_int_equal(posted(&fixture), 0);
	expect_none(&fixture);
	expect_result(pier_recv_pool_destroy(fixture.pool), -EBUSY);
	assert_non_null(strstr(pier_error_message(), "8 of its messages"));
	expect_ok(pier_recv_pool_release(fixture.pool, &messages[5]));
	assert_int_equal(posted(&fixture), 1);
	arrive(&fixture, 2);
	messages[5] = expect_next(&fixture, 2);
	for (int i = 0; i < COUNT; i++)
		expect_ok(pier_recv_pool_release(fixture.pool, &messages[i]));
	close_fixture(&fixture);
}

static void reposts_the_last_slot_at_once(void **state)
{
	(void)state;
	on_both(posts_the_last_at_once_body);
}

/* More slots than the receive queue has places. */
static void fills_a_queue_with_fewer_places(void **state)
{
	struct pier_recv_pool_attr attr = usual();
	struct fixture fixture = open_with(OWN, &attr, 3);
	struct pier_pool_message messages[3];

	(void)state;
	assert_int_equal(posted(&fixture), 3);
	for (int round = 0; round < 10; round++) {
		for (int i = 0; i < 3; i++)
			arrive(&fixture, 1);
		for (int i = 0; i < 3; i++)
			messages[i] = expect_next(&fixture, 1);
		/* Other slots take the places of those that are held. */
		expect_none(&fixture);
		assert_int_equal(posted(&fixture), 3);
		for (int i = 3; i-- > 0;)
			expect_ok(pier_recv_pool_release(fixture.pool, &messages[i]));
	}
	close_fixture(&fixture);
}

/* The user's own receives alternate with the pool's. */
static void works_beside_other_receives(void **state)
{
	struct pier_recv_pool_attr attr = usual();
	struct fixture fixture = open_with(OWN, &attr, COUNT + 1);
	struct pier_scatter nowhere = { 0x1000, 8, 99 };
	struct pier_pool_message message;
	struct pier_result result;
	struct pier_work work;

	(void)state;
	expect_ok(pier_channel_post_recv(fixture.channel, &nowhere, 1, &work));
	for (uint32_t i = 0; i < COUNT; i++) {
		arrive(&fixture, i);
		message = expect_next(&fixture, i);
		expect_ok(pier_recv_pool_release(fixture.pool, &message));
	}
	arrive(&fixture, 3);
	expect_none(&fixture);
	expect_result(pier_work_poll(fixture.channel, work, &result), 1);
	assert_int_equal(result.byte_length, 3);
	close_fixture(&fixture);
}

static void delivers_before_it_fails_body(bool shared)
{
	struct fixture fixture = open_fixture(shared);
	struct pier_pool_message messages[2], none;

	arrive(&fixture, 1);
	arrive(&fixture, 2);
	fake_complete(ids_of(&fixture)[0], IBV_WC_LOC_LEN_ERR, IBV_WC_BIND_MW, 0);
	messages[0] = expect_next(&fixture, 1);
	messages[1] = expect_next(&fixture, 2);
	for (int i = 0; i < 3; i++) {
		expect_result(pier_recv_pool_wait(fixture.pool, 0, &none), -EPIPE);
		assert_non_null(strstr(pier_error_message(), "longer"));
		assert_ptr_equal(none.channel, fixture.channel);
		expect_result(pier_recv_pool_wait(fixture.pool, 1, &none), -EPIPE);
	}
	expect_ok(pier_recv_pool_release(fixture.pool, &messages[1]));
	expect_ok(pier_recv_pool_release(fixture.pool, &messages[0]));
	close_fixture(&fixture);
}

static void delivers_messages_before_an_error(void **state)
{
	(void)state;
	on_both(delivers_before_it_fails_body);
}

/* The receives of the old connection are not those of the new one. */
static void continues_when_its_channel_was_reset(void **state)
{
	struct fixture fixture = open_fixture(false);
	struct pier_pool_message held, message;

	(void)state;
	arrive(&fixture, 3);
	held = expect_next(&fixture, 3);
	expect_ok(pier_channel_cancel(fixture.channel));
	for (int i = 0; i < 2; i++)
		expect_result(pier_recv_pool_wait(fixture.pool, 0, &message), -EPIPE);
	expect_ok(pier_channel_reset(fixture.channel));
	expect_result(pier_recv_pool_wait(fixture.pool, 0, &message), 0);
	assert_int_equal(posted(&fixture), COUNT - 1);
	expect_ok(pier_channel_connect(fixture.channel, &peer));
	for (uint32_t i = 0; i < COUNT; i++) {
		arrive(&fixture, i + 1);
		message = expect_next(&fixture, i + 1);
		expect_ok(pier_recv_pool_release(fixture.pool, &message));
	}
	expect_ok(pier_recv_pool_release(fixture.pool, &held));
	close_fixture(&fixture);
}

/* The other channels continue. */
static void reports_each_broken_channel_once(void **state)
{
	struct fixture fixture = open_fixture(SHARED);
	struct pier_pool_message message;
	struct ibv_cq *first = fake.cq;
	struct pier_channel *other;

	(void)state;
	other = make_channel(fixture.pool, 1);
	expect_result(pier_recv_pool_destroy(fixture.pool), -EBUSY);
	assert_non_null(strstr(pier_error_message(), "2 channels"));
	pier_break_channel(fixture.channel, -ECANCELED, "broken by the test");
	expect_result(pier_recv_pool_wait(fixture.pool, 0, &message), -EPIPE);
	assert_ptr_equal(message.channel, fixture.channel);
	expect_result(pier_recv_pool_wait(fixture.pool, 0, &message), 0);
	arrive(&fixture, 1);
	expect_result(pier_channel_poll(other), 1);
	expect_result(pier_recv_pool_wait(fixture.pool, 0, &message), 1);
	assert_ptr_equal(message.channel, other);
	expect_ok(pier_recv_pool_release(fixture.pool, &message));
	pier_break_channel(other, -ECANCELED, "so is the other");
	for (int i = 0; i < 3; i++) {
		expect_result(pier_recv_pool_wait(fixture.pool, 0, &message), -EPIPE);
		assert_ptr_equal(message.channel, other);
	}
	expect_ok(pier_channel_destroy(other));
	fake.cq = first;
	close_fixture(&fixture);
}

/* A channel with endless messages does not starve the others. */
static void serves_channels_in_turn(void **state)
{
	struct fixture fixture = open_fixture(SHARED);
	struct pier_pool_message messages[COUNT];
	struct pier_channel *channels[2] = { fixture.channel };
	struct ibv_cq *first = fake.cq;
	uint64_t last[2] = { 0 };

	(void)state;
	channels[1] = make_channel(fixture.pool, 1);
	for (int i = 0; i < COUNT; i++) {
		arrive(&fixture, (uint32_t)i);
		expect_result(pier_channel_poll(channels[i >= COUNT / 2]), 1);
	}
	for (int i = 0; i < COUNT; i++) {
		expect_result(pier_recv_pool_wait(fixture.pool, 0, &messages[i]), 1);
		assert_ptr_equal(messages[i].channel, channels[i % 2]);
		/* Each channel in order. */
		assert_true(i < 2 || messages[i].length > last[i % 2]);
		last[i % 2] = messages[i].length;
	}
	for (int i = 0; i < COUNT; i++)
		expect_ok(pier_recv_pool_release(fixture.pool, &messages[i]));
	expect_ok(pier_channel_destroy(channels[1]));
	fake.cq = first;
	close_fixture(&fixture);
}

/* Messages that were not taken go back into the queue. */
static void outlives_shared_channels(void **state)
{
	struct fixture fixture = open_fixture(SHARED);

	(void)state;
	arrive(&fixture, 1);
	arrive(&fixture, 2);
	expect_result(pier_channel_poll(fixture.channel), 2);
	expect_ok(pier_channel_destroy(fixture.channel));
	assert_int_equal(posted(&fixture), COUNT);
	expect_none(&fixture);
	fixture.channel = make_channel(fixture.pool, 1);
	for (uint32_t i = 0; i < 2 * COUNT; i++) {
		struct pier_pool_message message;

		arrive(&fixture, 3);
		message = expect_next(&fixture, 3);
		expect_ok(pier_recv_pool_release(fixture.pool, &message));
	}
	close_fixture(&fixture);
}

static void outlives_its_channel(void **state)
{
	struct fixture fixture = open_fixture(OWN);
	struct pier_pool_message message, none;

	(void)state;
	arrive(&fixture, 1);
	arrive(&fixture, 2);
	message = expect_next(&fixture, 1);
	expect_ok(pier_channel_destroy(fixture.channel));
	expect_result(pier_recv_pool_wait(fixture.pool, 0, &none), -EPIPE);
	assert_null(none.channel);
	assert_non_null(strstr(pier_error_message(), "destroyed"));
	expect_result(pier_recv_pool_wait(fixture.pool, 0, &none), -EPIPE);
	expect_result(pier_recv_pool_destroy(fixture.pool), -EBUSY);
	expect_ok(pier_recv_pool_release(fixture.pool, &message));
	fixture.channel = NULL;
	close_fixture(&fixture);
}

/* A receive cannot be withdrawn: the channel is stopped, and frees its places. */
static void destroying_it_stops_its_channel(void **state)
{
	struct fixture fixture = open_fixture(OWN);
	struct pier_scatter target = { 0x1000, 8, 99 };

	(void)state;
	arrive(&fixture, 1);
	expect_ok(pier_recv_pool_destroy(fixture.pool));
	assert_int_equal(fake.state, IBV_QPS_ERR);
	assert_int_equal(fake.mrs, 0);
	assert_int_equal(pier_channel_outstanding(fixture.channel), 0);
	expect_result(pier_channel_post_recv(fixture.channel, &target, 1, NULL), -EPIPE);
	assert_non_null(strstr(pier_error_message(), "receive pool was destroyed"));
	fixture.pool = NULL;
	close_fixture(&fixture);
}

/* A channel that breaks after a message is reported, although another one works. */
static void returns_messages_before_reporting_a_channel(void **state)
{
	struct pier_recv_pool_attr attr = usual();
	struct pier_pool_message message;
	struct pier_channel *other;
	struct ibv_cq *first;
	struct fixture fixture;

	(void)state;
	fixture = open_with(SHARED, &attr, COUNT);
	first = fake.cq;
	other = make_channel(fixture.pool, 1);
	arrive(&fixture, 1);
	expect_result(pier_channel_poll(other), 1);
	pier_break_channel(other, -ECANCELED, "broken by the test");
	expect_result(pier_recv_pool_wait(fixture.pool, 0, &message), 1);
	assert_ptr_equal(message.channel, other);
	expect_ok(pier_recv_pool_release(fixture.pool, &message));
	expect_result(pier_recv_pool_wait(fixture.pool, 0, &message), -EPIPE);
	assert_ptr_equal(message.channel, other);
	expect_result(pier_recv_pool_wait(fixture.pool, 0, &message), 0);
	expect_ok(pier_channel_destroy(other));
	fake.cq = first;
	close_fixture(&fixture);
}

static void asks_again_for_what_was_not_posted_body(bool shared)
{
	struct fixture fixture = open_fixture(shared);
	struct pier_pool_message messages[3], none;

	for (int i = 0; i < 3; i++)
		arrive(&fixture, 1);
	for (int i = 0; i < 2; i++)
		messages[i] = expect_next(&fixture, 1);
	/* The device takes the first, and refuses the second. */
	fake.fail_call = fake.calls + 2;
	expect_ok(pier_recv_pool_release(fixture.pool, &messages[0]));
	expect_ok(pier_recv_pool_release(fixture.pool, &messages[1]));
	assert_int_equal(posted(&fixture), COUNT - 2);
	/* Messages that have arrived come first. */
	messages[2] = expect_next(&fixture, 1);
	fake.fail_call = fake.calls + 1;
	expect_result(pier_recv_pool_wait(fixture.pool, 0, &none), -ENOSPC);
	fake.fail_call = 0;
	expect_none(&fixture);
	assert_int_equal(posted(&fixture), COUNT - 1);
	expect_ok(pier_recv_pool_release(fixture.pool, &messages[2]));
	for (uint32_t i = 0; i < 3 * COUNT; i++) {
		arrive(&fixture, i % LENGTH);
		messages[0] = expect_next(&fixture, i % LENGTH);
		expect_ok(pier_recv_pool_release(fixture.pool, &messages[0]));
	}
	close_fixture(&fixture);
}

static void retries_receives_that_were_not_posted(void **state)
{
	(void)state;
	on_both(asks_again_for_what_was_not_posted_body);
}

/* Each call of the device fails, with everything before it undone. */
static void undoes_a_failed_creation(void **state)
{
	struct pier_recv_pool_attr attr = usual();
	struct pier_recv_pool *pool = NULL;
	struct pier_channel *channel;
	struct test_census before;
	int call;

	(void)state;
	fake_reset();
	before = test_take_census();
	for (call = 1;; call++) {
		fake.calls = 0;
		fake.fail_call = call;
		if (pier_recv_pool_create(&fake.pd, &attr, &pool) == 0)
			break;
		fake.fail_call = 0;
		fake.shared = 0;
		test_assert_census(&before);
		assert_int_equal(fake.srqs + fake.mrs, 0);
	}
	assert_int_equal(call, 1 + 1 + 1 + COUNT); /* region, queue, receives */
	/* The queue, and then the region; each is tried again. */
	for (int i = 1; i <= 2; i++) {
		fake.calls = 0;
		fake.fail_call = i == 1 ? 1 : 2;
		if (i == 1)
			expect_result(pier_recv_pool_destroy(pool), -ENOSPC);
	}
	expect_result(pier_recv_pool_destroy(pool), -ENOSPC);
	assert_int_equal(fake.srqs, 0);
	assert_int_equal(fake.mrs, 1);
	fake.fail_call = 0;
	expect_ok(pier_recv_pool_destroy(pool));
	test_assert_census(&before);

	channel = make_channel(NULL, COUNT);
	before = test_take_census();
	fake.calls = 0;
	fake.fail_call = 2 + 3;
	expect_result(test_recv_pool_create(&fake.pd, channel, &attr, &pool), -ENOSPC);
	fake.fail_call = 0;
	test_assert_census(&before);
	assert_int_equal(fake.mrs, 0);
	/* The device took some of them. */
	assert_int_equal(pier_channel_outstanding(channel), 0);
	expect_result(test_recv_pool_create(&fake.pd, channel, &attr, &pool), -EPIPE);
	expect_ok(pier_channel_destroy(channel));
}

static void uses_the_region_of_the_caller(void **state)
{
	struct pier_recv_pool_attr attr = usual();
	struct pier_pool_message message;
	static uint8_t memory[COUNT * LENGTH + 100];
	struct fixture fixture = { 0 };
	struct pier_mr *mr, *read_only;

	(void)state;
	fake_reset();
	fixture.before = test_take_census();
	expect_ok(pier_mr_reg(&fake.pd, memory, sizeof(memory), PIER_ACCESS_LOCAL_WRITE,
			      &mr));
	expect_ok(pier_mr_reg(&fake.pd, memory, sizeof(memory), 0, &read_only));
	fixture.channel = make_channel(NULL, COUNT);
	attr.mr = mr;
	attr.offset = 101;
	expect_result(
		test_recv_pool_create(&fake.pd, fixture.channel, &attr, &fixture.pool),
		-ERANGE);
	attr.offset = UINT64_MAX;
	expect_result(
		test_recv_pool_create(&fake.pd, fixture.channel, &attr, &fixture.pool),
		-ERANGE);
	attr.offset = 100;
	attr.mr = read_only;
	expect_result(
		test_recv_pool_create(&fake.pd, fixture.channel, &attr, &fixture.pool),
		-EACCES);
	attr.mr = mr;
	attr.count = 1;
	expect_ok(test_recv_pool_create(&fake.pd, fixture.channel, &attr, &fixture.pool));
	arrive(&fixture, 4);
	expect_result(pier_recv_pool_wait(fixture.pool, 0, &message), 1);
	assert_null(message.pointer);
	assert_ptr_equal(message.mr, mr);
	assert_int_equal(message.offset, 100);
	assert_int_equal(message.iova, (uintptr_t)memory + 100);
	/* Also while a slot in the caller's hands is the only one not posted. */
	expect_result(pier_mr_dereg(mr), -EBUSY);
	assert_non_null(strstr(pier_error_message(), "receive of a pool"));
	expect_ok(pier_recv_pool_release(fixture.pool, &message));
	expect_ok(pier_recv_pool_destroy(fixture.pool));
	expect_ok(pier_mr_dereg(mr));
	expect_ok(pier_mr_dereg(read_only));
	fixture.pool = NULL;
	close_fixture(&fixture);
}

#define REFUSED(field, value, error)                                                  \
	do {                                                                          \
		attr = usual();                                                       \
		attr.field = (value);                                                 \
		expect_result(test_recv_pool_create(&fake.pd, channel, &attr, &pool), \
			      (error));                                               \
		assert_null(pool);                                                    \
	} while (0)

static void refuses_invalid_attributes(void **state)
{
	struct pier_recv_pool *pool = NULL, *other = NULL;
	struct pier_recv_pool_attr attr = usual();
	struct pier_pool_message message;
	struct pier_result received;
	struct pier_channel *channel, *shared;

	(void)state;
	fake_reset();
	channel = make_channel(NULL, 2);
	REFUSED(count, 0, -EINVAL);
	REFUSED(count, PIER_QUEUE_MAX + 1, -EINVAL);
	REFUSED(length, 0, -EINVAL);
	REFUSED(length, fake.port.max_msg_sz + 1, -EMSGSIZE);
	REFUSED(timeout_ms, 0, -EINVAL);
	REFUSED(spec, NULL, -EINVAL);
	REFUSED(spec, "nothing", -ENOENT);
	REFUSED(size, sizeof(attr) - 1, -EINVAL);
	attr = usual();
	expect_ok(test_recv_pool_create(&fake.pd, channel, NULL, &pool));
	expect_result(test_recv_pool_create(&fake.pd, channel, &attr, &other), -EBUSY);
	expect_result(pier_recv_pool_wait(pool, -2, &message), -EINVAL);
	expect_result(pier_recv_pool_wait(pool, 0, &message), 0);
	message.slot = 16;
	expect_result(pier_recv_pool_release(pool, &message), -ESTALE);
	expect_result(pier_recv_pool_release(pool, NULL), -EINVAL);
	expect_ok(pier_recv_pool_destroy(pool));
	expect_ok(pier_channel_destroy(channel));

	fake.device.limits.max_srq = 0;
	expect_result(pier_recv_pool_create(&fake.pd, &attr, &pool), -EOPNOTSUPP);
	fake.device.limits.max_srq = 1;
	expect_ok(pier_recv_pool_create(&fake.pd, &attr, &pool));
	shared = make_channel(pool, 1);
	expect_result(test_recv_pool_create(&fake.pd, shared, &attr, &other), -EINVAL);
	expect_result(pier_srq_post_recv(pier_recv_pool_srq(pool), NULL, 0, NULL),
		      -EBUSY);
	expect_result(pier_srq_destroy(pier_recv_pool_srq(pool)), -EBUSY);
	expect_result(pier_message_wait(shared, 0, &received), -EBUSY);
	expect_result(pier_message_wait(shared, 0, &received), -EBUSY);
	expect_ok(pier_channel_destroy(shared));
	expect_ok(pier_recv_pool_destroy(pool));
	expect_ok(pier_recv_pool_destroy(NULL));
}

/* Random arrivals, takes and releases: every message comes once and in order. */
static void agrees_with_a_model_body(bool shared)
{
	struct test_random random = test_random_start();
	struct fixture fixture = open_fixture(shared);
	struct pier_pool_message held[COUNT];
	uint32_t sent = 0, taken = 0;
	int count = 0, waiting;

	for (int step = 0; step < 20000; step++) {
		uint64_t dice = test_random_below(&random, 3);

		if (dice == 0 && posted(&fixture) > 0) {
			arrive(&fixture, sent++ % (LENGTH + 1));
		} else if (dice == 1 && taken < sent) {
			held[count] = expect_next(&fixture, taken % (LENGTH + 1));
			assert_int_equal(held[count++].sequence, taken++);
		} else if (dice == 1) {
			expect_none(&fixture);
			assert_int_equal(posted(&fixture), COUNT - count);
		} else if (count > 0) {
			int i = (int)test_random_below(&random, (uint64_t)count);

			expect_ok(pier_recv_pool_release(fixture.pool, &held[i]));
			held[i] = held[--count];
		}
		/* No message is delayed while there is a slot. */
		waiting = COUNT - count - posted(&fixture) - (int)(sent - taken);
		assert_true(waiting >= 0 && waiting < 2);
	}
	while (count > 0)
		expect_ok(pier_recv_pool_release(fixture.pool, &held[--count]));
	close_fixture(&fixture);
}

static void agrees_with_a_model(void **state)
{
	(void)state;
	on_both(agrees_with_a_model_body);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(posts_all_slots_at_once),
		cmocka_unit_test(delivers_in_order),
		cmocka_unit_test(reports_immediate_data),
		cmocka_unit_test(reposts_slots_in_batches),
		cmocka_unit_test(reposts_the_last_slot_at_once),
		cmocka_unit_test(fills_a_queue_with_fewer_places),
		cmocka_unit_test(works_beside_other_receives),
		cmocka_unit_test(delivers_messages_before_an_error),
		cmocka_unit_test(continues_when_its_channel_was_reset),
		cmocka_unit_test(reports_each_broken_channel_once),
		cmocka_unit_test(serves_channels_in_turn),
		cmocka_unit_test(outlives_shared_channels),
		cmocka_unit_test(outlives_its_channel),
		cmocka_unit_test(destroying_it_stops_its_channel),
		cmocka_unit_test(returns_messages_before_reporting_a_channel),
		cmocka_unit_test(retries_receives_that_were_not_posted),
		cmocka_unit_test(undoes_a_failed_creation),
		cmocka_unit_test(uses_the_region_of_the_caller),
		cmocka_unit_test(refuses_invalid_attributes),
		cmocka_unit_test(agrees_with_a_model),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
