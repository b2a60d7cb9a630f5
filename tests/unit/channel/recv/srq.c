/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared receive queues. The NIC completes what the test says. */
#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"
#include "tests/support/random.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <pier/pier.h>

#include "channel/recv/srq.h"
#include "nic/nic.h"

enum {
	KEY = 5,
	OTHER = 6,
	DEPTH = 4,
	SENDS = 2,
};

static const struct pier_endpoint peer = {
	.qpn = 0x55,
	.link_layer = PIER_LINK_ETHERNET,
	.gid = { 0xfd, 1 },
	.max_rd_atomic = 4,
};
static const struct pier_scatter target = { 0x1000, 8, KEY };

/* A queue and a connected channel, which is stopped when it is destroyed. */
struct fixture {
	struct test_census before;
	struct pier_srq *srq;
	struct pier_channel *channel;
};

static struct pier_srq *make_srq(void)
{
	struct pier_srq_attr attr;
	struct pier_srq *srq = NULL;

	pier_srq_attr_init(&attr);
	attr.max_wr = DEPTH;
	attr.max_sge = 2;
	expect_ok(pier_srq_create(&fake.pd, &attr, &srq));
	return srq;
}

static struct pier_channel *make_channel(struct pier_srq *srq)
{
	struct pier_channel_attr attr;
	struct pier_channel *channel = NULL;

	pier_channel_attr_init(&attr);
	attr.max_send_wr = SENDS;
	attr.max_send_sge = 2;
	/* Ignored. */
	attr.max_recv_wr = attr.max_recv_sge = UINT32_MAX;
	attr.srq = srq;
	expect_ok(pier_channel_create(&fake.pd, &attr, &channel));
	expect_ok(pier_channel_connect(channel, &peer));
	return channel;
}

static struct fixture open_fixture(void)
{
	struct fixture fixture;

	fake_reset();
	fixture.before = test_take_census();
	fixture.srq = make_srq();
	fixture.channel = make_channel(fixture.srq);
	return fixture;
}

static void close_fixture(struct fixture *fixture)
{
	expect_ok(pier_channel_destroy(fixture->channel));
	expect_ok(pier_srq_destroy(fixture->srq));
	assert_int_equal(atomic_load(&fake.pd.children), 0);
	assert_int_equal(fake.srqs + fake.qps + fake.cqs + fake.channels, 0);
	test_assert_census(&fixture->before);
}

static void post(struct pier_srq *srq, void *context)
{
	expect_ok(pier_srq_post_recv(srq, &target, 1, context));
}

static void arrive(int number, uint32_t length)
{
	fake_complete(fake.shared_ids[number], IBV_WC_SUCCESS, IBV_WC_RECV, length);
}

static void expect_message(struct pier_channel *channel, void *context, uint32_t length)
{
	struct pier_result result = { 0 };

	expect_result(pier_message_wait(channel, 0, &result), 1);
	assert_ptr_equal(result.context, context);
	assert_int_equal(result.error, 0);
	assert_int_equal(result.opcode, PIER_OP_RECV);
	assert_int_equal(result.byte_length, length);
	assert_false(result.has_immediate);
}

static void expect_none(struct pier_channel *channel)
{
	struct pier_result result = { .context = &result };

	expect_result(pier_message_wait(channel, 0, &result), 0);
	assert_ptr_equal(result.context, &result);
}

static void passes_attributes_to_the_device(void **state)
{
	struct pier_scatter two[] = { { 1, 2, 3 }, { 0x1234, 5, KEY } };
	struct fixture fixture = open_fixture();

	(void)state;
	assert_int_equal(fake.last_srq.max_wr, DEPTH);
	assert_int_equal(fake.last_srq.max_sge, 2);
	assert_ptr_equal(fake.last_qp.srq, fixture.srq->srq);
	/* No CQ overruns, whichever channel gets everything. */
	assert_int_equal(fake.cq->cqe, SENDS + DEPTH);
	expect_ok(pier_srq_post_recv(fixture.srq, two, 2, NULL));
	assert_int_equal(fake.last_recv.num_sge, 2);
	assert_null(fake.last_recv.next);
	assert_memory_equal(&fake.last_recv_sge, &two[0], sizeof(two[0]));
	assert_memory_equal(&fake.last_recv.sg_list[1], &two[1], sizeof(two[1]));
	assert_true(fake.last_recv.sg_list != (struct ibv_sge *)two);
	expect_ok(pier_srq_post_recv(fixture.srq, NULL, 0, NULL));
	assert_int_equal(fake.last_recv.num_sge, 0);
	assert_int_equal(fixture.srq->used, 2);
	close_fixture(&fixture);
}

/* Messages keep the order of their channel; receives complete in any order. */
static void delivers_messages_in_order(void **state)
{
	struct fixture fixture = open_fixture();
	int contexts[3];

	(void)state;
	expect_none(fixture.channel);
	for (int i = 0; i < 3; i++)
		post(fixture.srq, &contexts[i]);
	arrive(2, 7);
	arrive(0, 0);
	expect_message(fixture.channel, &contexts[2], 7);
	expect_message(fixture.channel, &contexts[0], 0);
	expect_none(fixture.channel);
	arrive(0, 8);
	expect_message(fixture.channel, &contexts[1], 8);
	assert_int_equal(fixture.srq->used, 0);
	close_fixture(&fixture);
}

static void reports_the_message(void **state)
{
	struct fixture fixture = open_fixture();
	struct pier_result result;

	(void)state;
	post(fixture.srq, NULL);
	fake_complete_imm(fake.shared_ids[0], IBV_WC_RECV_RDMA_WITH_IMM, 99,
			  htonl(0x80a1b2c3));
	expect_result(pier_message_wait(fixture.channel, 0, &result), 1);
	assert_int_equal(result.opcode, PIER_OP_RECV_WRITE_IMM);
	assert_int_equal(result.byte_length, 99);
	assert_true(result.has_immediate);
	assert_int_equal(result.immediate, 0x80a1b2c3);
	close_fixture(&fixture);
}

/* Also if a wait for something else collects them. */
static void keeps_messages_collected_by_other_waits(void **state)
{
	struct pier_gather source = { 0x1000, 8, KEY };
	struct fixture fixture = open_fixture();
	struct pier_work work;
	int context;

	(void)state;
	post(fixture.srq, &context);
	expect_ok(pier_channel_post_send(fixture.channel, &source, 1, &work));
	arrive(0, 3);
	fake_complete(fake.send_ids[0], IBV_WC_SUCCESS, IBV_WC_SEND, 0);
	expect_ok(test_work_wait(fixture.channel, work, 0, NULL));
	expect_message(fixture.channel, &context, 3);
	close_fixture(&fixture);
}

/* A place is used until its message is taken, so no CQ can overrun. */
static void untaken_messages_occupy_places(void **state)
{
	struct fixture fixture = open_fixture();

	(void)state;
	for (int i = 0; i < DEPTH; i++)
		post(fixture.srq, NULL);
	expect_result(pier_srq_post_recv(fixture.srq, &target, 1, NULL), -EAGAIN);
	for (int i = 0; i < DEPTH; i++)
		arrive(0, 8);
	expect_result(pier_channel_poll(fixture.channel), DEPTH);
	expect_result(pier_srq_post_recv(fixture.srq, &target, 1, NULL), -EAGAIN);
	assert_non_null(strstr(pier_error_message(), "4"));
	assert_int_equal(fake.shared, 0);
	expect_message(fixture.channel, NULL, 8);
	post(fixture.srq, NULL);
	expect_result(pier_srq_post_recv(fixture.srq, &target, 1, NULL), -EAGAIN);
	assert_int_equal(fake.shared, 1);
	close_fixture(&fixture);
}

/* Each number is used once, and a stale completion finds nothing. */
static void recognizes_its_own_receives(void **state)
{
	struct fixture fixture = open_fixture();
	uint64_t old;
	int context;

	(void)state;
	post(fixture.srq, NULL);
	old = fake.shared_ids[0];
	arrive(0, 1);
	fake_complete(old, IBV_WC_SUCCESS, IBV_WC_RECV, 2);
	expect_message(fixture.channel, NULL, 1);
	expect_none(fixture.channel);
	post(fixture.srq, &context);
	assert_true(fake.shared_ids[0] != old);
	fake_complete(old, IBV_WC_SUCCESS, IBV_WC_RECV, 3);
	fake_complete(old + DEPTH, IBV_WC_SUCCESS, IBV_WC_RECV, 3);
	fake_complete(fake.shared_ids[0] ^ PIER_ID_SHARED, IBV_WC_SUCCESS, IBV_WC_RECV,
		      3);
	expect_none(fixture.channel);
	arrive(0, 4);
	expect_message(fixture.channel, &context, 4);
	close_fixture(&fixture);
}

static void expect_use(uint32_t key, bool used)
{
	const char *use = pier_region_in_use(&fake.pd, key);

	if (!used)
		assert_null(use);
	else
		assert_string_equal(use, "receive");
}

static void keeps_regions_of_posted_receives(void **state)
{
	struct pier_scatter two[] = { { 0, 0, OTHER }, { 0x1000, 8, KEY } };
	struct fixture fixture = open_fixture();

	(void)state;
	expect_use(KEY, false);
	expect_ok(pier_srq_post_recv(fixture.srq, two, 2, NULL));
	expect_use(KEY, true);
	expect_use(OTHER, false);
	arrive(0, 8);
	expect_result(pier_channel_poll(fixture.channel), 1);
	expect_use(KEY, true);
	expect_message(fixture.channel, NULL, 8);
	expect_use(KEY, false);
	close_fixture(&fixture);
	expect_use(KEY, false);
}

static void reports_receives_that_failed(void **state)
{
	struct fixture fixture = open_fixture();
	struct pier_result result;
	int contexts[3];

	(void)state;
	for (int i = 0; i < 3; i++)
		post(fixture.srq, &contexts[i]);
	arrive(0, 8);
	fake_complete(fake.shared_ids[0], IBV_WC_LOC_LEN_ERR, IBV_WC_BIND_MW, 1);
	expect_message(fixture.channel, &contexts[0], 8);
	expect_result(pier_message_wait(fixture.channel, 0, &result), 1);
	assert_ptr_equal(result.context, &contexts[1]);
	assert_int_equal(result.error, -EMSGSIZE);
	assert_non_null(strstr(pier_error_message(), "longer"));
	expect_result(pier_message_wait(fixture.channel, 0, &result), -EPIPE);
	assert_non_null(strstr(pier_error_message(), "longer"));
	expect_result(pier_message_wait(fixture.channel, 1, &result), -EPIPE);
	/* The queue does not. */
	post(fixture.srq, NULL);
	assert_int_equal(fixture.srq->used, 2);
	close_fixture(&fixture);
}

static void serves_several_channels(void **state)
{
	struct fixture fixture = open_fixture();
	struct ibv_cq *first = fake.cq;
	struct pier_channel *other;
	int contexts[2];

	(void)state;
	other = make_channel(fixture.srq);
	expect_result(pier_srq_destroy(fixture.srq), -EBUSY);
	assert_non_null(strstr(pier_error_message(), "2 channels"));
	post(fixture.srq, &contexts[0]);
	post(fixture.srq, &contexts[1]);
	/* The fake has one CQ: the polling channel gets the completions. */
	arrive(1, 1);
	expect_message(other, &contexts[1], 1);
	arrive(0, 2);
	expect_message(fixture.channel, &contexts[0], 2);
	expect_ok(pier_channel_destroy(other));
	fake.cq = first;
	expect_result(pier_srq_destroy(fixture.srq), -EBUSY);
	assert_non_null(strstr(pier_error_message(), "1 channel has"));
	close_fixture(&fixture);
}

/* Messages of a channel that is destroyed are posted again, unchanged. */
static void loses_no_receive(void **state)
{
	struct fixture fixture = open_fixture();
	int contexts[3];
	uint64_t left;

	(void)state;
	for (int i = 0; i < 3; i++)
		post(fixture.srq, &contexts[i]);
	left = fake.shared_ids[2];
	arrive(0, 1);
	expect_result(pier_channel_poll(fixture.channel), 1);
	fake_complete(fake.shared_ids[0], IBV_WC_WR_FLUSH_ERR, IBV_WC_BIND_MW, 1);
	expect_ok(pier_channel_destroy(fixture.channel));
	assert_int_equal(fake.shared, 3);
	assert_int_equal(fake.shared_ids[0], left);
	assert_int_equal(fixture.srq->used, 3);
	assert_memory_equal(fake.last_recv.sg_list, &target, sizeof(target));
	expect_use(KEY, true);

	fixture.channel = make_channel(fixture.srq);
	for (int i = 0; i < 3; i++)
		arrive(0, (uint32_t)i);
	expect_message(fixture.channel, &contexts[2], 0);
	expect_message(fixture.channel, &contexts[0], 1);
	expect_message(fixture.channel, &contexts[1], 2);
	close_fixture(&fixture);
}

static void survives_a_device_that_returns_no_receives(void **state)
{
	struct fixture fixture = open_fixture();

	(void)state;
	post(fixture.srq, NULL);
	arrive(0, 1);
	expect_result(pier_channel_poll(fixture.channel), 1);
	/* After the queue pair went to the error state. */
	fake.fail_call = fake.calls + 2;
	expect_ok(pier_channel_destroy(fixture.channel));
	fake.fail_call = 0;
	assert_int_equal(fake.shared, 0);
	assert_int_equal(fixture.srq->used, 0);
	fixture.channel = make_channel(fixture.srq);
	close_fixture(&fixture);
}

static void refuses_invalid_receives(void **state)
{
	struct fixture fixture = open_fixture();
	struct pier_scatter three[3] = { { 0 } };
	struct pier_result result;
	struct pier_channel *plain = NULL;
	struct pier_work work;

	(void)state;
	expect_result(pier_srq_post_recv(fixture.srq, three, 3, NULL), -EINVAL);
	assert_non_null(strstr(pier_error_message(), "0 to 2"));
	expect_result(pier_srq_post_recv(fixture.srq, three, -1, NULL), -EINVAL);
	expect_result(pier_srq_post_recv(fixture.srq, NULL, 1, NULL), -EINVAL);
	expect_result(pier_channel_post_recv(fixture.channel, &target, 1, &work),
		      -EINVAL);
	assert_non_null(strstr(pier_error_message(), "pier_srq_post_recv"));
	expect_result(pier_channel_post_recv(fixture.channel, &target, 1, NULL), -EINVAL);
	expect_result(pier_channel_recv(fixture.channel, &target, 1, 0, NULL), -EINVAL);
	expect_result(pier_message_wait(fixture.channel, -2, &result), -EINVAL);
	expect_result(pier_message_wait(fixture.channel, 0, &result), 0);
	expect_result(pier_message_wait(fixture.channel, 1, &result), -ETIMEDOUT);
	expect_ok(pier_channel_destroy(fixture.channel));

	expect_ok(pier_channel_create(&fake.pd, NULL, &plain));
	expect_result(pier_message_wait(plain, 0, &result), -EINVAL);
	expect_result(pier_message_wait(plain, 0, &result), -EINVAL);
	fixture.channel = plain;
	close_fixture(&fixture);
	expect_ok(pier_srq_destroy(NULL));
}

static void refuses_other_sizes(uint32_t max_wr, uint32_t max_sge, const char *words)
{
	struct pier_srq_attr attr;
	struct pier_srq *srq = NULL;

	pier_srq_attr_init(&attr);
	attr.max_wr = max_wr;
	attr.max_sge = max_sge;
	expect_result(pier_srq_create(&fake.pd, &attr, &srq), -EINVAL);
	if (!strstr(pier_error_message(), words))
		fail_msg("no \"%s\" in: %s", words, pier_error_message());
	assert_null(srq);
	assert_int_equal(fake.srqs, 0);
}

static void refuses_invalid_attributes(void **state)
{
	struct pier_srq_attr attr;
	struct pier_srq *srq = NULL;

	pier_srq_attr_init(&attr);
	(void)state;
	fake_reset();
	refuses_other_sizes(0, 1, "1 to 64");
	refuses_other_sizes(65, 1, "max_wr 65");
	refuses_other_sizes(1, 0, "1 to 4");
	refuses_other_sizes(1, 5, "max_sge 5");
	fake.device.limits.max_srq_wr = INT32_MAX;
	refuses_other_sizes(PIER_QUEUE_MAX + 1, 1, "pier's");
	fake.device.limits.max_srq_wr = 64;
	attr.size--;
	expect_result(pier_srq_create(&fake.pd, &attr, &srq), -EINVAL);
	/* Without attributes the queue gets what the device has. */
	expect_ok(pier_srq_create(&fake.pd, NULL, &srq));
	assert_int_equal(fake.last_srq.max_wr, 64);
	assert_int_equal(fake.last_srq.max_sge, 1);
	expect_ok(pier_srq_destroy(srq));
	fake.device.limits.max_srq = 0;
	expect_result(pier_srq_create(&fake.pd, NULL, &srq), -EOPNOTSUPP);
	assert_non_null(strstr(pier_error_message(), "max_srq 0"));
}

static void refuses_unsuitable_channels(void **state)
{
	struct pier_channel_attr attr;
	struct pier_channel *channel = NULL;
	struct pier_srq *srq;
	struct pier_pd elsewhere;

	pier_channel_attr_init(&attr);
	(void)state;
	fake_reset();
	srq = make_srq();
	attr.max_send_sge = 2;
	attr.srq = srq;
	/* One completion too many. */
	fake.device.limits.max_cqe = 16 + DEPTH - 1;
	expect_result(pier_channel_create(&fake.pd, &attr, &channel), -EINVAL);
	assert_non_null(strstr(pier_error_message(), "completion queue of 20"));
	fake.device.limits.max_cqe++;
	expect_ok(pier_channel_create(&fake.pd, &attr, &channel));
	expect_ok(pier_channel_destroy(channel));
	elsewhere = fake.pd;
	expect_result(pier_channel_create(&elsewhere, &attr, &channel), -EINVAL);
	assert_non_null(strstr(pier_error_message(), "another protection domain"));
	expect_ok(pier_srq_destroy(srq));
}

static void undoes_a_failed_creation(void **state)
{
	struct pier_channel_attr attr;
	struct pier_channel *channel = NULL;
	struct test_census before;
	struct pier_srq *srq = NULL;

	pier_channel_attr_init(&attr);
	(void)state;
	fake_reset();
	before = test_take_census();
	fake.fail_call = 1;
	expect_result(pier_srq_create(&fake.pd, NULL, &srq), -ENOSPC);
	assert_null(srq);
	test_assert_census(&before);
	srq = make_srq();
	attr.max_send_sge = 2;
	attr.srq = srq;
	for (int call = 1;; call++) {
		fake.calls = 0;
		fake.fail_call = call;
		if (pier_channel_create(&fake.pd, &attr, &channel) == 0)
			break;
		assert_int_equal(srq->channel_count, 0);
		assert_int_equal(fake.qps + fake.cqs + fake.channels, 0);
	}
	expect_ok(pier_channel_destroy(channel));
	fake.calls = 0;
	fake.fail_call = 1;
	expect_result(pier_srq_post_recv(srq, &target, 1, NULL), -ENOSPC);
	assert_int_equal(srq->used, 0);
	expect_use(KEY, false);
	fake.calls = 0;
	expect_result(pier_srq_destroy(srq), -ENOSPC);
	fake.fail_call = 0;
	post(srq, NULL);
	expect_ok(pier_srq_destroy(srq));
	expect_use(KEY, false);
	test_assert_census(&before);
}

/* Nothing outstanding would be flushed. */
static void queries_the_state_at_the_timeout(void **state)
{
	struct fixture fixture = open_fixture();
	struct pier_result result;
	int context;

	(void)state;
	fake.state = IBV_QPS_ERR;
	expect_result(pier_message_wait(fixture.channel, 0, &result), 0);
	expect_result(pier_message_wait(fixture.channel, 1, &result), -EPIPE);
	assert_non_null(strstr(pier_error_message(), "error state"));
	/* A later completion may give the cause. */
	post(fixture.srq, &context);
	fake_complete(fake.shared_ids[0], IBV_WC_LOC_PROT_ERR, IBV_WC_BIND_MW, 0);
	expect_result(pier_message_wait(fixture.channel, 0, &result), 1);
	expect_result(pier_message_wait(fixture.channel, 0, &result), -EPIPE);
	assert_null(strstr(pier_error_message(), "error state"));
	close_fixture(&fixture);
}

/* Random posts, arrivals and takes, beside a model of two arrays. */
static void agrees_with_a_model(void **state)
{
	struct test_random random = test_random_start();
	struct fixture fixture = open_fixture();
	uintptr_t posted[DEPTH], arrived[DEPTH], next = 1;
	int posts = 0, arrivals = 0;

	(void)state;
	for (int step = 0; step < 20000; step++) {
		uint64_t dice = test_random_below(&random, 3);

		if (dice == 0 && posts + arrivals < DEPTH) {
			post(fixture.srq, (void *)next);
			posted[posts++] = next++;
		} else if (dice == 0) {
			expect_result(pier_srq_post_recv(fixture.srq, &target, 1, NULL),
				      -EAGAIN);
		} else if (dice == 1 && posts > 0) {
			int i = (int)test_random_below(&random, (uint64_t)posts);

			arrived[arrivals++] = posted[i];
			arrive(i, (uint32_t)posted[i]);
			memmove(posted + i, posted + i + 1,
				(size_t)(--posts - i) * sizeof(*posted));
		} else if (dice == 2 && arrivals > 0) {
			expect_message(fixture.channel, (void *)arrived[0],
				       (uint32_t)arrived[0]);
			memmove(arrived, arrived + 1,
				(size_t)--arrivals * sizeof(*arrived));
		} else if (dice == 2) {
			expect_none(fixture.channel);
		}
		assert_int_equal(fixture.srq->used, posts + arrivals);
	}
	close_fixture(&fixture);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(passes_attributes_to_the_device),
		cmocka_unit_test(delivers_messages_in_order),
		cmocka_unit_test(reports_the_message),
		cmocka_unit_test(keeps_messages_collected_by_other_waits),
		cmocka_unit_test(untaken_messages_occupy_places),
		cmocka_unit_test(recognizes_its_own_receives),
		cmocka_unit_test(keeps_regions_of_posted_receives),
		cmocka_unit_test(reports_receives_that_failed),
		cmocka_unit_test(serves_several_channels),
		cmocka_unit_test(loses_no_receive),
		cmocka_unit_test(survives_a_device_that_returns_no_receives),
		cmocka_unit_test(refuses_invalid_receives),
		cmocka_unit_test(refuses_invalid_attributes),
		cmocka_unit_test(refuses_unsuitable_channels),
		cmocka_unit_test(undoes_a_failed_creation),
		cmocka_unit_test(queries_the_state_at_the_timeout),
		cmocka_unit_test(agrees_with_a_model),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
