/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The requests that one user has in flight, on a NIC that completes what the test says.
 * The test hands in the time.
 */
#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"
#include "tests/support/manual_clock.h"

#include <errno.h>

#include "channel/flow.h"
#include "core/deadline.h"
#include "nic/nic.h"

enum {
	SIZE = 4,
	STALL_MS = 20,
	MS = 1000000,
};

static const struct pier_endpoint peer = {
	.qpn = 0x55,
	.link_layer = PIER_LINK_ETHERNET,
	.gid = { 0xfd, 1 },
};
static struct pier_channel *channel;
static struct pier_flow flow;
static struct test_census census;

static int setup(void **state)
{
	struct pier_channel_attr attr;

	(void)state;
	census = test_take_census();
	pier_channel_attr_init(&attr);
	attr.max_send_wr = SIZE;
	expect_ok(pier_channel_create(fake_reset(), &attr, &channel));
	expect_ok(pier_channel_connect(channel, &peer));
	flow = (struct pier_flow){ 0 };
	expect_ok(pier_flow_open(&flow, channel, SIZE, STALL_MS));
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	pier_flow_free(&flow);
	fake.poll_error = 0;
	expect_ok(pier_channel_destroy(channel));
	test_assert_census(&census);
	return 0;
}

/* Post requests, numbered from `first` on. */
static void post(uint64_t first, uint64_t end, int64_t now)
{
	for (uint64_t i = first; i < end; i++) {
		struct pier_flight flight = { .offset = i };

		expect_ok(pier_channel_post_send(channel, NULL, 0, &flight.work));
		pier_flow_add(&flow, &flight, now);
	}
}

static void complete(enum ibv_wc_status status)
{
	fake_complete(fake.send_ids[0], status, IBV_WC_SEND, 0);
}

static void expect_none(int64_t now)
{
	struct pier_flight flight;
	struct pier_result result;

	assert_false(pier_flow_take(&flow, now, &flight, &result));
}

static void expect_taken(uint64_t number, int error, int64_t now)
{
	struct pier_flight flight;
	struct pier_result result;

	assert_true(pier_flow_take(&flow, now, &flight, &result));
	assert_int_equal(flight.offset, number);
	assert_int_equal(flight.error, error);
	assert_int_equal(result.error, error);
}

static void reconnect(void)
{
	struct pier_endpoint next = peer;

	next.qpn++;
	expect_ok(pier_channel_reset(channel));
	expect_ok(pier_channel_connect(channel, &next));
}

static void takes_requests_in_the_order_of_posting(void **state)
{
	uint64_t posted = 0, taken = 0;

	(void)state;
	expect_none(0);
	for (int round = 0; round < 3; round++) {
		post(posted, taken + SIZE, 0);
		posted = taken + SIZE;
		assert_true(pier_flow_is_full(&flow));
		expect_none(0);
		for (int i = 0; i < SIZE - 1; i++) {
			assert_int_equal(pier_flow_at(&flow, 0)->offset, taken);
			complete(IBV_WC_SUCCESS);
			expect_taken(taken++, 0, 0);
			expect_none(0);
		}
	}
	assert_int_equal(flow.count, 1);
	assert_int_equal(flow.error, 0);
}

/* Everything has a result at once, and the first failure is the cause of the others. */
static void first_failed_request_ends_all(void **state)
{
	(void)state;
	post(0, 3, 0);
	complete(IBV_WC_SUCCESS);
	complete(IBV_WC_REM_ACCESS_ERR);
	expect_taken(0, 0, 0);
	expect_taken(1, -EACCES, 0);
	assert_int_equal(flow.error, -EACCES);
	assert_int_equal(pier_channel_outstanding(channel), 0);
	expect_taken(2, -ECANCELED, 0);
	expect_none(0);
	assert_int_equal(flow.error, -EACCES);
	assert_int_equal(pier_channel_error(channel, NULL, 0), -EACCES);
}

/* The user of the flow goes on meanwhile. */
static void flush_that_does_not_come_is_not_waited_for(void **state)
{
	(void)state;
	post(0, 2, 0);
	fake.never_flushes = true;
	complete(IBV_WC_REM_ACCESS_ERR);
	expect_taken(0, -EACCES, 0);
	assert_true(pier_flow_is_stopping(&flow));
	expect_none(0);
	expect_ok(pier_flow_check(&flow, 100 * MS));
	assert_true(pier_flow_wakes_at(&flow) <= pier_deadline(1000));
	assert_int_equal(fake.state, IBV_QPS_ERR);
	manual_clock_advance(1000);
	expect_taken(1, -ECANCELED, 0);
	assert_false(pier_flow_is_stopping(&flow));
	assert_int_equal(fake.state, IBV_QPS_RESET);
}

static void channel_that_cannot_be_polled_is_stopped(void **state)
{
	(void)state;
	post(0, 2, 0);
	fake.poll_error = -1;
	expect_taken(0, -ECANCELED, 0);
	assert_int_equal(flow.error, -EIO);
	fake.poll_error = 0;
	expect_taken(1, -ECANCELED, 0);
	assert_int_equal(fake.state, IBV_QPS_RESET);
}

/* The clock counts from the last completion, or from the post that began the flow. */
static void flow_without_completions_stalls(void **state)
{
	(void)state;
	assert_true(pier_flow_wakes_at(&flow) == INT64_MAX);
	post(0, 2, 5 * MS);
	complete(IBV_WC_SUCCESS);
	expect_taken(0, 0, 7 * MS);
	post(2, 3, 9 * MS);
	fake_report(IBV_EVENT_PORT_ERR, 1);
	assert_int_equal(pier_flow_wakes_at(&flow), 27 * MS);
	expect_ok(pier_flow_check(&flow, 27 * MS - 1));
	pier_flow_restart_stall(&flow, 8 * MS);
	expect_ok(pier_flow_check(&flow, 27 * MS));
	expect_result(pier_flow_check(&flow, 28 * MS), -EHOSTUNREACH);
	test_assert_sentence("no request completed within 20 ms; everything outstanding "
			     "was stopped");
	assert_int_equal(flow.error, -EHOSTUNREACH);
	expect_taken(1, -ECANCELED, 28 * MS);
	expect_taken(2, -ECANCELED, 28 * MS);
	assert_true(pier_flow_wakes_at(&flow) == INT64_MAX);
	expect_result(pier_channel_post_send(channel, NULL, 0, NULL), -EPIPE);
	test_assert_sentence("no request completed within 20 ms");
	test_assert_sentence("IBV_EVENT_PORT_ERR");
}

/* The channel works: requests of others are in it. */
static void full_queue_fails_the_flow_alone(void **state)
{
	(void)state;
	for (int i = 0; i < SIZE; i++)
		expect_ok(pier_channel_post_send(channel, NULL, 0, NULL));
	expect_result(pier_channel_post_send(channel, NULL, 0, NULL), -EAGAIN);
	expect_ok(pier_flow_refused(&flow, -EAGAIN, 5 * MS));
	expect_ok(pier_flow_refused(&flow, -EAGAIN, 6 * MS));
	assert_int_equal(pier_flow_wakes_at(&flow), 25 * MS);
	expect_result(pier_flow_check(&flow, 25 * MS), -EAGAIN);
	test_assert_sentence("the send queue was full of other requests for 20 ms");
	assert_int_equal(flow.error, -EAGAIN);
	assert_int_equal(fake.state, IBV_QPS_RTS);
	assert_int_equal(pier_channel_outstanding(channel), SIZE);
}

/* What was refused is not in flight, and what is in flight completes. */
static void refused_request_lets_the_others_complete(void **state)
{
	(void)state;
	post(0, 1, 0);
	expect_result(pier_channel_post_send(channel, NULL, 1, NULL), -EINVAL);
	expect_result(pier_flow_refused(&flow, -EINVAL, 0), -EINVAL);
	assert_int_equal(flow.error, -EINVAL);
	expect_none(0);
	complete(IBV_WC_SUCCESS);
	expect_taken(0, 0, 0);
	assert_int_equal(fake.state, IBV_QPS_RTS);
}

/* Another user of the channel has collected the failure, and a post was refused. */
static void flow_that_failed_before_ends_all(void **state)
{
	(void)state;
	post(0, 2, 0);
	complete(IBV_WC_REM_ACCESS_ERR);
	expect_result(pier_channel_poll(channel), 1);
	expect_result(pier_channel_post_send(channel, NULL, 0, NULL), -EPIPE);
	expect_result(pier_flow_refused(&flow, -EPIPE, 0), -EPIPE);
	assert_int_equal(flow.error, -EACCES);
	expect_taken(0, -EACCES, 0);
	expect_taken(1, -ECANCELED, 0);
}

static void channel_that_was_reset_keeps_its_new_connection(void **state)
{
	(void)state;
	post(0, 2, 0);
	reconnect();
	expect_taken(0, -ECANCELED, 0);
	pier_flow_stop(&flow, -ECANCELED, "its user has ended");
	expect_taken(1, -ECANCELED, 0);
	assert_int_equal(fake.state, IBV_QPS_RTS);
	expect_ok(pier_channel_post_send(channel, NULL, 0, NULL));
}

/* Requests of both connections are in the flow. */
static void requests_after_a_reset_stall(void **state)
{
	(void)state;
	post(0, 1, 0);
	reconnect();
	post(1, 2, 0);
	expect_taken(0, -ECANCELED, MS);
	expect_none(MS);
	expect_result(pier_flow_check(&flow, 21 * MS), -EHOSTUNREACH);
	assert_int_equal(fake.state, IBV_QPS_ERR);
	expect_taken(1, -ECANCELED, 21 * MS);
}

/* No trace of the previous flow: a failure, a full queue, a larger ring. */
static void next_flow_begins_anew(void **state)
{
	(void)state;
	post(0, 1, MS);
	complete(IBV_WC_SUCCESS);
	expect_taken(0, 0, MS);
	expect_ok(pier_flow_refused(&flow, -EAGAIN, 5 * MS));
	pier_flow_fail(&flow, -EINVAL, "first");
	pier_flow_fail(&flow, -EACCES, "second");
	assert_int_equal(flow.error, -EINVAL);
	assert_string_equal(flow.sentence, "first");
	expect_ok(pier_flow_open(&flow, channel, SIZE / 2, PIER_TIMEOUT_DEFAULT));
	assert_int_equal(flow.error, 0);
	assert_true(pier_flow_wakes_at(&flow) == INT64_MAX);
	assert_int_equal(flow.stall_ns, (int64_t)channel->attr.timeout_ms * MS);
	post(0, SIZE / 2, MS);
	assert_true(pier_flow_is_full(&flow));
	complete(IBV_WC_SUCCESS);
	expect_taken(0, 0, MS);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(takes_requests_in_the_order_of_posting),
		TEST(first_failed_request_ends_all),
		TEST(flush_that_does_not_come_is_not_waited_for),
		TEST(channel_that_cannot_be_polled_is_stopped),
		TEST(flow_without_completions_stalls),
		TEST(full_queue_fails_the_flow_alone),
		TEST(refused_request_lets_the_others_complete),
		TEST(flow_that_failed_before_ends_all),
		TEST(channel_that_was_reset_keeps_its_new_connection),
		TEST(requests_after_a_reset_stall),
		TEST(next_flow_begins_anew),
	};

	return cmocka_run_group_tests_name("flow", tests, NULL, NULL);
}
