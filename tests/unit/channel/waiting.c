/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Polling, sleeping, and cancelling all requests of a channel. The NIC completes what the
 * test says.
 */
#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"

#include <errno.h>
#include <limits.h>
#include <sys/socket.h>
#include <unistd.h>

#include <pier/counter.h>
#include <pier/post.h>
#include <pier/recv_pool.h>
#include <pier/waiting.h>

#include "channel/wait.h"
#include "core/deadline.h"
#include "region/mr.h"
#include "nic/nic.h"

enum {
	DEPTH = 4,
	MANY = 1000,
	/*
	 * More than sleeping twice takes. A channel that polls does so at least
	 * PIER_LOOKS_PER_CLOCK times, and twice more to arm, however busy the machine
	 * is.
	 */
	FEW = PIER_LOOKS_PER_CLOCK,
	LONGEST_SPIN_US = 1000000,
};

static const struct pier_endpoint peer = {
	.qpn = 0x55,
	.link_layer = PIER_LINK_ETHERNET,
	.gid = { 0xfd, 1 },
};

static struct pier_channel *connected(enum pier_waiting waiting, uint32_t spin_us)
{
	struct pier_channel_attr attr;
	struct pier_channel *channel = NULL;

	pier_channel_attr_init(&attr);
	attr.max_send_wr = attr.max_recv_wr = DEPTH;
	attr.max_send_sge = attr.max_recv_sge = 1;
	attr.waiting = waiting;
	attr.spin_us = spin_us;
	expect_ok(pier_channel_create(fake_reset(), &attr, &channel));
	expect_ok(pier_channel_connect(channel, &peer));
	return channel;
}

/* A wait that only its timeout ends, and that stops nothing. */
static void wait_in_vain(struct pier_channel *channel, int timeout_ms)
{
	fake.polls = fake.notifies = 0;
	expect_result(pier_wait_for_room(channel, DEPTH, pier_deadline(timeout_ms)),
		      -ETIMEDOUT);
}

static void polls_as_configured(void **state)
{
	struct pier_channel *channel = connected(PIER_WAIT_POLL, 0);

	(void)state;
	expect_ok(pier_channel_post_send(channel, NULL, 0, NULL));
	wait_in_vain(channel, 20);
	assert_true(fake.polls > FEW);
	/* The last poll after the timeout arms the event, and does not sleep. */
	assert_int_equal(fake.notifies, 1);
	expect_ok(pier_channel_set_waiting(channel, PIER_WAIT_EVENT, 50));
	wait_in_vain(channel, 20);
	assert_true(fake.polls <= FEW);
	assert_true(fake.notifies >= 1);
	expect_ok(pier_channel_set_waiting(channel, PIER_WAIT_ADAPTIVE, 0));
	wait_in_vain(channel, 20);
	assert_true(fake.polls <= FEW);
	/* Polls for 10 ms, and sleeps for the rest. */
	expect_ok(pier_channel_set_waiting(channel, PIER_WAIT_ADAPTIVE, 10000));
	wait_in_vain(channel, 20);
	assert_true(fake.polls > FEW);
	assert_true(fake.notifies >= 1);
	/* Not beyond the end of the wait. */
	expect_ok(pier_channel_set_waiting(channel, PIER_WAIT_ADAPTIVE, LONGEST_SPIN_US));
	wait_in_vain(channel, 1);
	expect_ok(pier_channel_destroy(channel));
}

/*
 * A completion that comes while the channel polls needs no event. A channel with
 * PIER_WAIT_ADAPTIVE may sleep if the machine took longer than its spin time.
 */
static void finds_completions_while_polling(void **state)
{
	static const enum pier_waiting lookers[] = { PIER_WAIT_POLL, PIER_WAIT_ADAPTIVE };

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		struct pier_channel *channel = connected(lookers[i], LONGEST_SPIN_US);
		int64_t spin_end = pier_now() + LONGEST_SPIN_US * INT64_C(1000);

		fake.complete_at_poll = MANY;
		expect_ok(pier_channel_send(channel, NULL, 0, 20000));
		if (lookers[i] == PIER_WAIT_POLL || pier_now() < spin_end) {
			assert_int_equal(fake.polls, MANY);
			assert_int_equal(fake.notifies, 0);
		}
		expect_ok(pier_channel_destroy(channel));
	}
}

/* A busy machine lets the channel sleep after any number of polls. */
static void completions_wake_a_sleeping_channel(void **state)
{
	static const enum pier_waiting sleepers[] = { PIER_WAIT_EVENT,
						      PIER_WAIT_ADAPTIVE };

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		struct pier_channel *channel = connected(sleepers[i], 1);

		fake.complete_at_poll = INT_MAX;
		expect_ok(pier_channel_send(channel, NULL, 0, 20000));
		assert_int_equal(fake.events_given, 1);
		expect_ok(pier_channel_destroy(channel));
	}
}

/* Between the two polls of arming, where no event would come. */
static void finds_completions_while_arming(void **state)
{
	(void)state;
	/* Posting polls once, arming twice. */
	for (int poll = 2; poll <= 3; poll++) {
		struct pier_channel *channel = connected(PIER_WAIT_EVENT, 0);

		fake.complete_at_poll = poll;
		expect_ok(pier_channel_send(channel, NULL, 0, 20000));
		assert_int_equal(fake.polls, 3);
		assert_int_equal(fake.notifies, 1);
		expect_ok(pier_channel_destroy(channel));
	}
}

/* One wait of 20 ms that polls, and one that sleeps. */
static void expect_to_follow_the_mode(struct pier_channel *channel,
				      void (*wait)(void *subject), void *subject)
{
	expect_ok(pier_channel_set_waiting(channel, PIER_WAIT_POLL, 0));
	fake.polls = fake.notifies = 0;
	wait(subject);
	assert_true(fake.polls > FEW);
	assert_int_equal(fake.notifies, 1);
	expect_ok(pier_channel_set_waiting(channel, PIER_WAIT_EVENT, 0));
	fake.polls = fake.notifies = 0;
	wait(subject);
	assert_true(fake.polls <= FEW);
	assert_true(fake.notifies >= 1);
}

static void wait_for_counter(void *subject)
{
	expect_result(pier_counter_wait(subject, 1, 20), -ETIMEDOUT);
}

static void counter_waits_as_its_channel(void **state)
{
	struct pier_channel *channel = connected(PIER_WAIT_ADAPTIVE, 50);
	struct pier_counter *counter = NULL;
	struct ibv_mr verbs_mr = { 0 };
	struct pier_mr mr = { .mr = &verbs_mr,
			      .length = 1000,
			      .access = PIER_ACCESS_SHARED,
			      .pd = &fake.pd };

	(void)state;
	expect_ok(pier_counter_create(&fake.pd, &counter));
	expect_ok(pier_counter_bind_imm(counter, &mr, channel, 7));
	expect_to_follow_the_mode(channel, wait_for_counter, counter);
	expect_ok(pier_channel_destroy(channel));
	expect_ok(pier_counter_destroy(counter));
}

static void wait_for_pool(void *subject)
{
	struct pier_pool_message message;

	expect_result(pier_recv_pool_wait(subject, 20, &message), -ETIMEDOUT);
}

static void shared_pool_waits_as_its_channel(void **state)
{
	struct pier_recv_pool_attr pool_attr;
	struct pier_recv_pool *pool = NULL;
	struct pier_channel *channel = NULL;
	struct pier_channel_attr attr;

	(void)state;
	fake_reset();
	pier_recv_pool_attr_init(&pool_attr);
	pool_attr.count = 2;
	pool_attr.length = 64;
	expect_ok(pier_recv_pool_create(&fake.pd, &pool_attr, &pool));
	pier_channel_attr_init(&attr);
	attr.max_send_wr = 2;
	attr.max_send_sge = 1;
	attr.srq = pier_recv_pool_srq(pool);
	expect_ok(pier_channel_create(&fake.pd, &attr, &channel));
	expect_ok(pier_channel_connect(channel, &peer));
	expect_to_follow_the_mode(channel, wait_for_pool, pool);
	expect_ok(pier_channel_destroy(channel));
	expect_ok(pier_recv_pool_destroy(pool));
}

static void refuses_unknown_wait_modes(void **state)
{
	struct pier_channel_attr attr;
	struct pier_channel *channel = connected(PIER_WAIT_ADAPTIVE, 50);

	pier_channel_attr_init(&attr);
	(void)state;
	expect_result(pier_channel_set_waiting(channel, (enum pier_waiting)4, 0),
		      -EINVAL);
	test_assert_sentence("waiting 4");
	expect_result(pier_channel_set_waiting(channel, PIER_WAIT_UNSET, 0), -EINVAL);
	expect_result(pier_channel_set_waiting(channel, (enum pier_waiting) - 1, 0),
		      -EINVAL);
	expect_ok(pier_channel_set_waiting(channel, PIER_WAIT_POLL, LONGEST_SPIN_US));
	expect_result(pier_channel_set_waiting(channel, PIER_WAIT_EVENT, 1000001),
		      -EINVAL);
	test_assert_sentence("spin_us 1000001");
	expect_ok(pier_channel_destroy(channel));
	attr.max_send_sge = attr.max_recv_sge = 1;
	attr.waiting = (enum pier_waiting)7;
	expect_result(pier_channel_create(&fake.pd, &attr, &channel), -EINVAL);
	test_assert_sentence("waiting 7");
}

static void cancels_all_outstanding_requests(void **state)
{
	struct pier_channel *channel = connected(PIER_WAIT_ADAPTIVE, 50);
	struct pier_work done, send, receive;
	struct pier_result result = { 0 };

	(void)state;
	expect_ok(pier_channel_post_send(channel, NULL, 0, &done));
	expect_ok(pier_channel_post_send(channel, NULL, 0, &send));
	expect_ok(pier_channel_post_recv(channel, NULL, 0, &receive));
	/* In time, although nobody has polled yet. */
	fake_complete(done.id, IBV_WC_SUCCESS, IBV_WC_SEND, 0);
	expect_ok(pier_channel_cancel(channel));
	assert_int_equal(fake.state, IBV_QPS_ERR);
	assert_int_equal(pier_channel_outstanding(channel), 0);
	expect_ok(test_work_finish(channel, done, 0, NULL));
	expect_result(test_work_finish(channel, send, 0, &result), -ECANCELED);
	test_assert_sentence("cancelled, and 3 outstanding requests stopped");
	expect_result(pier_work_poll(channel, receive, &result), 1);
	assert_int_equal(result.error, -ECANCELED);
	expect_result(pier_channel_post_send(channel, NULL, 0, NULL), -EPIPE);
	test_assert_sentence("was cancelled");
	expect_ok(pier_channel_cancel(channel));
	expect_ok(pier_channel_destroy(channel));
}

/* Also on a device that is dead. */
static void cancels_requests_that_never_complete(void **state)
{
	struct pier_channel *channel = connected(PIER_WAIT_ADAPTIVE, 50);
	struct pier_work send;

	(void)state;
	fake.never_flushes = true;
	expect_ok(pier_channel_post_send(channel, NULL, 0, &send));
	expect_ok(pier_channel_cancel(channel));
	assert_int_equal(fake.state, IBV_QPS_RESET);
	assert_int_equal(pier_channel_outstanding(channel), 0);
	expect_result(test_work_finish(channel, send, 0, NULL), -ECANCELED);
	expect_ok(pier_channel_destroy(channel));
}

/* Returns 1 at its third call. */
static int interrupt_at_third(void *context)
{
	int *calls = context;

	return ++*calls >= 3;
}

static void expect_interrupted_requests(void)
{
	struct pier_channel *channel = connected(PIER_WAIT_EVENT, 0);
	struct pier_work work;
	int calls = 0;

	fake.complete_at_poll = 0;
	expect_ok(pier_channel_post_send(channel, NULL, 0, &work));
	pier_interrupt_set(interrupt_at_third, &calls);
	expect_result(test_work_finish(channel, work, 20000, NULL), -EINTR);
	test_assert_sentence("interrupted");
	assert_int_equal(calls, 3);
	/* The memory of the request is safe to reuse. */
	assert_int_equal(pier_channel_outstanding(channel), 0);
	expect_result(pier_channel_post_send(channel, NULL, 0, NULL), -EPIPE);
	expect_ok(pier_channel_destroy(channel));
}

static void expect_interrupted_handshake(void)
{
	struct pier_channel *channel = NULL;
	int calls = 0, fds[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	expect_ok(pier_channel_create(fake_reset(), NULL, &channel));
	pier_interrupt_set(interrupt_at_third, &calls);
	expect_result(pier_channel_handshake(channel, fds[0], fds[0], 20000), -EINTR);
	expect_ok(pier_channel_destroy(channel));
	close(fds[0]);
	close(fds[1]);
}

static void can_be_interrupted(void **state)
{
	struct pier_channel *channel;

	(void)state;
	expect_interrupted_requests();
	expect_interrupted_handshake();
	pier_interrupt_set(NULL, NULL);
	channel = connected(PIER_WAIT_EVENT, 0);
	expect_ok(pier_channel_post_send(channel, NULL, 0, NULL));
	wait_in_vain(channel, 120);
	expect_ok(pier_channel_destroy(channel));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(polls_as_configured),
		cmocka_unit_test(finds_completions_while_polling),
		cmocka_unit_test(completions_wake_a_sleeping_channel),
		cmocka_unit_test(finds_completions_while_arming),
		cmocka_unit_test(counter_waits_as_its_channel),
		cmocka_unit_test(shared_pool_waits_as_its_channel),
		cmocka_unit_test(refuses_unknown_wait_modes),
		cmocka_unit_test(can_be_interrupted),
		cmocka_unit_test(cancels_all_outstanding_requests),
		cmocka_unit_test(cancels_requests_that_never_complete),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
