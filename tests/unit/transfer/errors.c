/* SPDX-License-Identifier: BSD-3-Clause */
/* How a transfer fails and resumes. */
#include <pier/cq.h>
#include <pier/receiver.h>
#include <pier/recovery.h>
#include <pier/waiting.h>

#include "transfer_fixture.h"
#include "tests/support/manual_clock.h"
#include "core/clock.h"

/*
 * The nth chunk fails and those behind it are flushed; resuming moves the missing ones.
 */
static void resumes_missing_chunks(void **state)
{
	(void)state;
	for (int nth = 0; nth < 6; nth++) {
		int arrived = nth < 4 ? nth : 4;

		begin(95);
		expect_going(4);
		complete(arrived, IBV_WC_SUCCESS);
		expect_going(4);
		complete(nth - arrived, IBV_WC_SUCCESS);
		complete(1, IBV_WC_REM_ACCESS_ERR);
		complete(fake.sends, IBV_WC_WR_FLUSH_ERR);
		expect_result(pier_transfer_progress(transfer), -EACCES);
		test_assert_sentence("of 95 bytes have arrived: rail 0 of 1 failed: ");
		expect_result(pier_transfer_wait(transfer, PATIENT), -EACCES);
		assert_int_equal(pier_channel_outstanding(channel), 0);
		assert_int_equal(status().done, 10 * nth);
		assert_int_equal(status().working_rails, 0);
		assert_int_equal(rail_status().error, -EACCES);
		assert_non_null(strstr(rail_status().sentence, "access"));
		expect_result(pier_transfer_resume(transfer, &rail, 1), -EPIPE);
		test_assert_sentence("rail 0 of a transfer: the channel is broken");
		expect_ok(pier_channel_destroy(channel));
		connect_channel(DEPTH, 1u << 30);
		rail.channel = channel;
		fake.logged = 0;
		expect_ok(pier_transfer_resume(transfer, &rail, 1));
		assert_int_equal(rail_status().error, 0);
		expect_result(pier_transfer_resume(transfer, &rail, 1), -EBUSY);
		finish(0, 10 * (uint64_t)nth, 95 - 10 * (uint64_t)nth);
		expect_ok(pier_transfer_destroy(transfer));
		transfer = NULL;
		fake.logged = 0;
	}
}

/* The error is that of the other request, not the flush of the chunks. */
static void reports_what_broke_the_channel(void **state)
{
	struct pier_gather element = { 0x10000, 1, 0x11 };
	struct pier_work work;

	(void)state;
	expect_ok(pier_channel_post_write(channel, &element, 1, &target, &work));
	begin(95);
	expect_going(5);
	complete(1, IBV_WC_RETRY_EXC_ERR);
	complete(4, IBV_WC_WR_FLUSH_ERR);
	expect_result(pier_transfer_progress(transfer), -EHOSTUNREACH);
	test_assert_sentence("0 of 95 bytes have arrived");
	expect_result(pier_work_poll(channel, work, NULL), 1);
}

static int interrupt_always(void *context)
{
	(void)context;
	return 1;
}

/*
 * A call that posted and waited stopped the channel. A transfer that ended with its error
 * would look as if it were in progress.
 */
static void ends_with_no_error_of_another_wait(void **state)
{
	(void)state;
	begin(95);
	expect_going(4);
	expect_result(pier_channel_send(channel, NULL, 0, BRIEF), -ETIMEDOUT);
	expect_result(pier_transfer_wait(transfer, PATIENT), -EPIPE);
	test_assert_sentence("send did not complete within 20 ms");
	assert_true(status().ended);
	expect_ok(pier_channel_reset(channel));
	expect_ok(pier_channel_connect(channel, &peer));
	fake.logged = 0;
	expect_ok(pier_transfer_resume(transfer, &rail, 1));
	expect_going(4);
	pier_interrupt_set(interrupt_always, NULL);
	expect_result(pier_channel_send(channel, NULL, 0, PATIENT), -EINTR);
	pier_interrupt_set(NULL, NULL);
	expect_result(pier_transfer_wait(transfer, PATIENT), -EPIPE);
	test_assert_sentence("interrupted");
	assert_true(status().ended);
}

/* The channel still works, so chunks in flight arrive. */
static void waits_for_chunks_in_flight_if_posting_fails(void **state)
{
	(void)state;
	begin(95);
	fake.fail_call = fake.calls + 3;
	expect_going(2);
	assert_int_equal(rail_status().error, -ENOSPC);
	complete(1, IBV_WC_SUCCESS);
	expect_going(1);
	complete(1, IBV_WC_SUCCESS);
	expect_result(pier_transfer_progress(transfer), -ENOSPC);
	assert_int_equal(status().done, 20);
	assert_int_equal(fake.state, IBV_QPS_RTS);
	fake.logged = 0;
	expect_ok(pier_transfer_resume(transfer, &rail, 1));
	finish(0, 20, 75);
}

static void stops_if_polling_fails(void **state)
{
	(void)state;
	begin(95);
	expect_going(4);
	fake.poll_error = -1;
	expect_result(pier_transfer_wait(transfer, PATIENT), -EIO);
	assert_int_equal(pier_channel_outstanding(channel), 0);
	assert_int_equal(status().done, 0);
	fake.poll_error = 0;
}

/* A handle is lost: its chunk may not have arrived, and is moved again. */
static void moves_chunks_with_lost_handles_again(void **state)
{
	struct pier_work work;

	(void)state;
	begin(95);
	expect_going(4);
	work.id = fake.send_ids[0];
	complete(1, IBV_WC_SUCCESS);
	expect_result(pier_work_poll(channel, work, NULL), 1);
	expect_result(pier_transfer_progress(transfer), -ESTALE);
	assert_int_equal(status().done, 0);
	assert_int_equal(pier_channel_outstanding(channel), 0);
	expect_ok(pier_channel_destroy(channel));
	connect_channel(DEPTH, 1u << 30);
	rail.channel = channel;
	fake.logged = 0;
	expect_ok(pier_transfer_resume(transfer, &rail, 1));
	finish(0, 0, 95);
}

static void stops_a_rail_that_stalls(void **state)
{
	struct pier_transfer_attr attr = attr_of(95);

	(void)state;
	attr.stall_ms = BRIEF;
	begin_with(&attr);
	expect_going(4);
	complete(1, IBV_WC_SUCCESS);
	expect_result(pier_transfer_wait(transfer, PIER_TIMEOUT_DEFAULT), -EHOSTUNREACH);
	test_assert_sentence("10 of 95 bytes have arrived: rail 0 of 1 failed: "
			     "no request completed within 20 ms");
	assert_int_equal(fake.state, IBV_QPS_ERR);
	assert_int_equal(pier_channel_outstanding(channel), 0);
	assert_int_equal(status().done, 10);
	expect_result(pier_channel_post_send(channel, NULL, 0, NULL), -EPIPE);
	test_assert_sentence("no request completed");
}

/* Not even the flush arrives: see pier_stop_channel(). */
static void stops_a_channel_of_a_lost_nic(void **state)
{
	struct pier_transfer_attr attr = attr_of(95);

	(void)state;
	attr.stall_ms = BRIEF;
	fake.never_flushes = true;
	expect_result(pier_transfer_run(&attr, PATIENT), -EHOSTUNREACH);
	assert_int_equal(fake.state, IBV_QPS_RESET);
	assert_int_equal(pier_channel_outstanding(channel), 0);
}

/* Each of its channels keeps its requests for a second. */
static void dead_rails_do_not_delay_a_step(void **state)
{
	struct pier_transfer_attr attr = attr_of(95);
	struct pier_channel_attr channel_attr;
	struct pier_rail rails[3];
	int64_t before;

	(void)state;
	pier_channel_attr_init(&channel_attr);
	for (int i = 0; i < 3; i++) {
		rails[i] = rail;
		expect_ok(
			pier_channel_create(&fake.pd, &channel_attr, &rails[i].channel));
		expect_ok(pier_channel_connect(rails[i].channel, &peer));
	}
	fake.never_flushes = true;
	attr.rails = rails;
	attr.rail_count = 3;
	attr.stall_ms = LIMIT;
	begin_with(&attr);
	expect_result(pier_transfer_progress(transfer), 0);
	manual_clock_advance(LIMIT);
	manual_clock_hurry(true);
	before = pier_now();
	expect_result(pier_transfer_progress(transfer), 0);
	assert_in_range(pier_now() - before, 0, 999 * 1000000);
	for (int i = 0; i < 3; i++)
		assert_true(pier_channel_outstanding(rails[i].channel) > 0);
	expect_result(pier_transfer_wait(transfer, 1001), -EHOSTUNREACH);
	manual_clock_hurry(false);
	for (int i = 0; i < 3; i++)
		assert_int_equal(pier_channel_outstanding(rails[i].channel), 0);
	expect_ok(pier_transfer_destroy(transfer));
	transfer = NULL;
	for (int i = 0; i < 3; i++)
		expect_ok(pier_channel_destroy(rails[i].channel));
}

/* All are stopped at the same time. */
static void dead_rails_of_a_receiver_take_a_second_together(void **state)
{
	struct pier_receiver_attr attr;
	struct pier_receiver_rail rails[3];
	struct pier_receiver *receiver;
	int64_t before;

	(void)state;
	pier_receiver_attr_init(&attr);
	for (int i = 0; i < 3; i++) {
		rails[i] = (struct pier_receiver_rail){ .mr = &region };
		expect_ok(pier_channel_create(&fake.pd, NULL, &rails[i].channel));
		expect_ok(pier_channel_connect(rails[i].channel, &peer));
	}
	attr.rails = rails;
	attr.rail_count = 3;
	attr.length = 95;
	expect_ok(pier_receiver_create(&attr, &receiver));
	fake.never_flushes = true;
	manual_clock_hurry(true);
	before = pier_now();
	expect_ok(pier_receiver_destroy(receiver));
	assert_in_range(pier_now() - before, 1000 * 1000000, 1999 * 1000000);
	manual_clock_hurry(false);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(pier_channel_outstanding(rails[i].channel), 0);
		expect_ok(pier_channel_destroy(rails[i].channel));
	}
}

/* The flush of the first rail does not arrive. */
static void other_rails_go_on_while_one_is_stopped(void **state)
{
	struct pier_transfer_attr attr = attr_of(95);
	struct pier_channel_attr channel_attr;
	struct pier_cq_attr cq_attr;
	struct pier_rail rails[2];
	struct pier_rail_status now;
	struct pier_cq *cq;

	(void)state;
	pier_cq_attr_init(&cq_attr);
	expect_ok(pier_cq_create(&fake.pd, &cq_attr, &cq));
	pier_channel_attr_init(&channel_attr);
	channel_attr.cq = cq;
	for (int i = 0; i < 2; i++) {
		rails[i] = rail;
		expect_ok(
			pier_channel_create(&fake.pd, &channel_attr, &rails[i].channel));
		expect_ok(pier_channel_connect(rails[i].channel, &peer));
	}
	fake.never_flushes = true;
	attr.rails = rails;
	attr.rail_count = 2;
	attr.window = 2;
	begin_with(&attr);
	expect_result(pier_transfer_progress(transfer), 0);
	assert_int_equal(fake.sends, 4);
	complete(1, IBV_WC_REM_ACCESS_ERR);
	complete(1, IBV_WC_SUCCESS);
	expect_result(pier_transfer_progress(transfer), 0);
	assert_int_equal(pier_channel_error(rails[0].channel, NULL, 0), -EACCES);
	assert_true(pier_channel_outstanding(rails[0].channel) > 0);
	expect_ok(pier_transfer_query_rail(transfer, 1, &now, sizeof(now)));
	assert_int_equal(now.done, 10);
	manual_clock_advance(1000);
	expect_result(pier_transfer_progress(transfer), 0);
	assert_int_equal(pier_channel_outstanding(rails[0].channel), 0);
	while (pier_transfer_progress(transfer) == 0)
		complete(fake.sends, IBV_WC_SUCCESS);
	expect_result(pier_transfer_progress(transfer), 1);
	expect_ok(pier_transfer_destroy(transfer));
	transfer = NULL;
	for (int i = 0; i < 2; i++)
		expect_ok(pier_channel_destroy(rails[i].channel));
	expect_ok(pier_cq_destroy(cq));
}

static void gives_up_on_a_queue_full_of_other_requests(void **state)
{
	struct pier_gather element = { 0x10000, 1, 0x11 };
	struct pier_transfer_attr attr = attr_of(95);

	(void)state;
	for (int i = 0; i < DEPTH; i++)
		expect_ok(pier_channel_post_write(channel, &element, 1, &target, NULL));
	attr.stall_ms = BRIEF;
	begin_with(&attr);
	expect_result(pier_transfer_wait(transfer, PATIENT), -EAGAIN);
	test_assert_sentence("full of other requests for 20 ms");
	assert_int_equal(fake.state, IBV_QPS_RTS);
	assert_int_equal(fake.sends, DEPTH);
	complete(DEPTH, IBV_WC_SUCCESS);
	fake.logged = 0;
	expect_ok(pier_transfer_resume(transfer, &rail, 1));
	finish(0, 0, 95);
}

/* The chunks in flight when its time is over are awaited until the rail stalls. */
static void a_run_ends_at_its_deadline(void **state)
{
	struct pier_transfer_attr attr = attr_of(95);

	(void)state;
	attr.stall_ms = LIMIT;
	expect_result(pier_transfer_run(&attr, -2), -EINVAL);
	assert_int_equal(fake.sends, 0);
	expect_result(pier_transfer_run(&attr, BRIEF), -ETIMEDOUT);
	test_assert_sentence(
		"0 of 95 bytes have arrived: the time limit of 20 ms expired");
	assert_int_equal(fake.state, IBV_QPS_ERR);
}

static void waits_no_longer_than_its_timeout(void **state)
{
	(void)state;
	begin(95);
	expect_result(pier_transfer_wait(transfer, 0), 0);
	assert_int_equal(fake.sends, 4);
	expect_result(pier_transfer_wait(transfer, BRIEF), -ETIMEDOUT);
	test_assert_sentence("the transfer did not end within 20 ms: 0 of 95 bytes");
	expect_result(pier_transfer_wait(transfer, -2), -EINVAL);
	assert_false(status().ended);
	assert_int_equal(fake.state, IBV_QPS_RTS);
	finish(0, 0, 95);
}

static int interrupt_each_wait(void *context)
{
	++*(int *)context;
	return 1;
}

/* Only a run, which owns its transfer, ends it. */
static void interrupted_wait_stops_nothing(void **state)
{
	struct pier_transfer_attr attr = attr_of(95);
	int calls = 0;

	(void)state;
	attr.stall_ms = LIMIT;
	begin_with(&attr);
	pier_interrupt_set(interrupt_each_wait, &calls);
	expect_result(pier_transfer_wait(transfer, PATIENT), -EINTR);
	assert_int_equal(calls, 1);
	assert_false(status().ended);
	assert_int_equal(fake.state, IBV_QPS_RTS);
	complete(4, IBV_WC_SUCCESS);
	finish(0, 0, 95);
	fake.logged = 0;
	expect_result(pier_transfer_run(&attr, PATIENT), -EINTR);
	pier_interrupt_set(NULL, NULL);
	test_assert_sentence("0 of 95 bytes have arrived: the wait was interrupted");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		transfer_test(resumes_missing_chunks),
		transfer_test(reports_what_broke_the_channel),
		transfer_test(ends_with_no_error_of_another_wait),
		transfer_test(waits_for_chunks_in_flight_if_posting_fails),
		transfer_test(stops_if_polling_fails),
		transfer_test(moves_chunks_with_lost_handles_again),
		transfer_test(stops_a_rail_that_stalls),
		transfer_test(stops_a_channel_of_a_lost_nic),
		transfer_test(dead_rails_do_not_delay_a_step),
		transfer_test(dead_rails_of_a_receiver_take_a_second_together),
		transfer_test(other_rails_go_on_while_one_is_stopped),
		transfer_test(gives_up_on_a_queue_full_of_other_requests),
		transfer_test(a_run_ends_at_its_deadline),
		transfer_test(waits_no_longer_than_its_timeout),
		transfer_test(interrupted_wait_stops_nothing),
	};

	manual_clock_run();
	return cmocka_run_group_tests_name("transfer_errors", tests, NULL, NULL);
}
