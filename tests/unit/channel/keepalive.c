/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>

#include <pier/cq.h>
#include <pier/post.h>
#include <pier/recovery.h>
#include <pier/waiting.h>

#include "tests/support/manual_clock.h"
#include "tests/unit/channel/counter_fixture.h"

/* Keepalives to a silent peer. */

enum {
	MINUTE = 60000, /* keepalive_ms: never due by itself */
	SOON = 20,
	DEPTH = 3,
};

static const struct pier_endpoint peer = {
	.qpn = 0x55,
	.link_layer = PIER_LINK_ETHERNET,
	.gid = { 0xfd, 1 },
	.mtu = 1024,
};

static struct pier_channel *prepared(uint32_t keepalive_ms)
{
	struct pier_channel_attr attr;
	struct pier_channel *channel;

	pier_channel_attr_init(&attr);
	attr.max_send_sge = attr.max_recv_sge = 2;
	attr.max_send_wr = attr.max_recv_wr = DEPTH;
	attr.keepalive_ms = keepalive_ms;
	expect_ok(pier_channel_create(fake_reset(), &attr, &channel));
	return channel;
}

static struct pier_channel *connected(uint32_t keepalive_ms)
{
	struct pier_channel *channel = prepared(keepalive_ms);

	expect_ok(pier_channel_connect(channel, &peer));
	assert_int_equal(pier_channel_poll(channel), 0); /* the time starts now */
	return channel;
}

/* Waits end at once from now on. Returns the time. */
static int64_t hurry(void)
{
	manual_clock_hurry(true);
	return pier_now();
}

static void expect_passed(int64_t begin, int ms)
{
	manual_clock_hurry(false);
	/* Each look at the clock moves it, and a wait ends at a whole millisecond. */
	assert_in_range((pier_now() - begin) / 1000000, ms, ms + 2);
}

static void close_channel(struct pier_channel *channel)
{
	fake.fail_call = 0;
	expect_ok(pier_channel_destroy(channel));
	assert_int_equal(fake.pd.children, 0);
}

static void expect_asked(int times)
{
	int asked = 0;

	for (int i = 0; i < fake.logged; i++)
		asked += fake.log[i].wr.wr_id == PIER_ID_KEEPALIVE;
	assert_int_equal(asked, times);
}

static void sends_an_empty_write(void **state)
{
	struct pier_channel *channel = connected(MINUTE);
	const struct ibv_send_wr *wr = &fake.last_send;

	(void)state;
	manual_clock_advance(MINUTE - 1000);
	assert_int_equal(pier_channel_poll(channel), 0);
	expect_asked(0);
	manual_clock_advance(1000);
	assert_int_equal(pier_channel_poll(channel), 0);
	expect_asked(1);
	assert_int_equal(wr->opcode, IBV_WR_RDMA_WRITE);
	assert_int_equal(wr->send_flags, IBV_SEND_SIGNALED);
	assert_int_equal(wr->num_sge, 0);
	assert_int_equal(wr->wr.rdma.rkey, 0);
	assert_int_equal(wr->wr.rdma.remote_addr, 0);
	/* One keepalive at a time. */
	manual_clock_advance(10 * MINUTE);
	assert_int_equal(pier_channel_poll(channel), 0);
	assert_int_equal(pier_channel_next_ms(channel), -1);
	expect_asked(1);
	fake_complete(PIER_ID_KEEPALIVE, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE, 0);
	assert_int_equal(pier_channel_poll(channel), 1);
	assert_int_equal(pier_channel_error(channel, NULL, 0), 0);
	assert_int_equal(pier_channel_next_ms(channel), MINUTE);
	manual_clock_advance(MINUTE);
	assert_int_equal(pier_channel_poll(channel), 0);
	expect_asked(2);
	close_channel(channel);
}

/* A keepalive takes none of the caller's places. */
static void takes_no_place_of_the_caller(void **state)
{
	struct pier_channel *channel = connected(MINUTE);

	(void)state;
	assert_int_equal(fake.cap.max_send_wr, DEPTH + 1);
	assert_int_equal(fake.cap.max_recv_wr, DEPTH);
	assert_int_equal(fake.cq->cqe, 2 * DEPTH + 1);
	manual_clock_advance(MINUTE);
	assert_int_equal(pier_channel_poll(channel), 0);
	expect_asked(1);
	assert_int_equal(pier_channel_outstanding(channel), 0);
	assert_int_equal(pier_channel_send_room(channel), DEPTH);
	for (int i = 0; i < DEPTH; i++)
		expect_ok(pier_channel_post_send(channel, NULL, 0, NULL));
	expect_result(pier_channel_post_send(channel, NULL, 0, NULL), -EAGAIN);
	assert_int_equal(fake.sends, DEPTH + 1);
	close_channel(channel);
}

static void sends_nothing_unless_enabled(void **state)
{
	struct pier_channel *channel = connected(0);

	(void)state;
	assert_int_equal(fake.cap.max_send_wr, DEPTH);
	manual_clock_advance(10 * MINUTE);
	assert_int_equal(pier_channel_poll(channel), 0);
	assert_int_equal(pier_channel_arm(channel), 0);
	assert_int_equal(pier_channel_next_ms(channel), -1);
	expect_asked(0);
	close_channel(channel);
}

/* An outstanding request fails by itself, and each completion is a sign of life. */
static void sends_only_after_silence(void **state)
{
	struct pier_channel *channel = prepared(MINUTE);
	struct pier_work send, receive;

	(void)state;
	assert_int_equal(pier_channel_next_ms(channel), -1);
	manual_clock_advance(10 * MINUTE);
	assert_int_equal(pier_channel_poll(channel), 0);
	expect_ok(pier_channel_connect(channel, &peer));
	expect_ok(pier_channel_post_recv(channel, NULL, 0, &receive));
	assert_int_equal(pier_channel_poll(channel), 0);
	manual_clock_advance(MINUTE);
	expect_ok(pier_channel_post_send(channel, NULL, 0, &send));
	assert_int_equal(pier_channel_poll(channel), 0);
	assert_int_equal(pier_channel_next_ms(channel), -1);
	expect_asked(0);
	fake_complete(send.id, IBV_WC_SUCCESS, IBV_WC_SEND, 0);
	assert_int_equal(pier_channel_poll(channel), 1);
	assert_int_equal(pier_channel_poll(channel), 0);
	expect_asked(0);
	manual_clock_advance(MINUTE);
	fake_complete(receive.id, IBV_WC_SUCCESS, IBV_WC_RECV, 0);
	assert_int_equal(pier_channel_arm(channel), 1);
	assert_int_equal(pier_channel_next_ms(channel), MINUTE);
	expect_asked(0);
	manual_clock_advance(MINUTE);
	assert_int_equal(pier_channel_next_ms(channel), 0);
	assert_int_equal(pier_channel_arm(channel), 0);
	expect_asked(1);
	close_channel(channel);
}

static void reports_that_the_peer_is_gone(void **state)
{
	struct pier_channel *channel = connected(MINUTE);
	struct pier_channel_failure failure;
	struct pier_result result;
	struct pier_work work;

	(void)state;
	expect_ok(pier_channel_post_recv(channel, NULL, 0, &work));
	manual_clock_advance(MINUTE);
	fake.completes = true;
	fake.completes_with = IBV_WC_RETRY_EXC_ERR;
	assert_int_equal(pier_channel_poll(channel), 0);
	assert_int_equal(pier_channel_poll(channel), 2);
	expect_result(pier_channel_error(channel, &failure, sizeof(failure)),
		      -EHOSTUNREACH);
	assert_int_equal(failure.error_class, PIER_CLASS_UNREACHABLE);
	assert_int_equal(failure.first.opcode, PIER_OP_KEEPALIVE);
	assert_int_equal(failure.first.status, IBV_WC_RETRY_EXC_ERR);
	assert_int_equal(failure.first.vendor_error, 0x77);
	assert_int_equal(failure.flushed, 1);
	assert_non_null(strstr(failure.sentence, "keepalive failed"));
	assert_int_equal(pier_work_poll(channel, work, &result), 1);
	assert_int_equal(result.error, -ECANCELED);
	test_assert_sentence("keepalive");
	expect_result(pier_channel_post_send(channel, NULL, 0, NULL), -EPIPE);
	assert_int_equal(pier_channel_next_ms(channel), -1);
	close_channel(channel);
}

static void reports_that_the_peer_refuses_it(void **state)
{
	struct pier_channel *channel = connected(MINUTE);

	(void)state;
	manual_clock_advance(MINUTE);
	fake.completes = true;
	fake.completes_with = IBV_WC_REM_INV_REQ_ERR;
	assert_int_equal(pier_channel_poll(channel), 0);
	assert_int_equal(pier_channel_poll(channel), 1);
	expect_result(pier_channel_error(channel, NULL, 0), -EACCES);
	expect_result(pier_channel_post_send(channel, NULL, 0, NULL), -EPIPE);
	test_assert_sentence("PIER_ACCESS_REMOTE_WRITE");
	close_channel(channel);
}

/* A device that takes no requests will not complete any either. */
static void stops_if_posting_fails(void **state)
{
	struct pier_channel *channel = connected(MINUTE);
	struct pier_channel_failure failure;
	struct pier_work work;

	(void)state;
	expect_ok(pier_channel_post_recv(channel, NULL, 0, &work));
	manual_clock_advance(MINUTE);
	fake.fail_call = fake.calls + 1;
	assert_int_equal(pier_channel_poll(channel), 0);
	expect_result(pier_channel_error(channel, &failure, sizeof(failure)), -ENOSPC);
	assert_int_equal(failure.error_class, PIER_CLASS_STOPPED);
	assert_int_equal(failure.first.status, 0);
	assert_int_equal(failure.flushed, 1);
	assert_non_null(strstr(failure.sentence, "post a keepalive"));
	assert_int_equal(fake.state, IBV_QPS_ERR);
	expect_result(test_work_wait(channel, work, 0, NULL), -ECANCELED);
	close_channel(channel);
}

/* A device that flushes nothing is given a second, and polls do not spend it waiting. */
static void poll_does_not_wait_for_the_stop(void **state)
{
	struct pier_channel *channel = connected(MINUTE);
	struct pier_result result;
	struct pier_work work;
	int64_t begin;

	(void)state;
	expect_ok(pier_channel_post_recv(channel, NULL, 0, &work));
	manual_clock_advance(MINUTE);
	fake.never_flushes = true;
	fake.fail_call = fake.calls + 1;
	begin = hurry();
	assert_int_equal(pier_channel_poll(channel), 0);
	expect_passed(begin, 0);
	expect_result(pier_channel_error(channel, NULL, 0), -ENOSPC);
	assert_int_equal(pier_work_poll(channel, work, &result), 0);
	assert_int_equal(pier_channel_arm(channel), 0);
	assert_int_equal(pier_channel_next_ms(channel), 1000);
	manual_clock_advance(1000);
	assert_int_equal(pier_channel_next_ms(channel), 0);
	assert_int_equal(pier_channel_arm(channel), 1);
	assert_int_equal(fake.state, IBV_QPS_RESET);
	assert_int_equal(pier_work_poll(channel, work, &result), 1);
	assert_int_equal(result.error, -ECANCELED);
	assert_int_equal(pier_channel_next_ms(channel), -1);
	close_channel(channel);
}

/* Only a keepalive that is due wakes the thread. */
static void sends_while_a_thread_waits(void **state)
{
	struct pier_channel *channel = connected(SOON);
	int64_t begin = hurry();

	(void)state;
	fake.completes = true;
	fake.completes_with = IBV_WC_RETRY_EXC_ERR;
	expect_result(pier_channel_recv(channel, NULL, 0, PATIENT, NULL), -ECANCELED);
	expect_asked(1);
	expect_passed(begin, SOON);
	close_channel(channel);
}

/* A thread that never sleeps sends keepalives too. */
static void sends_while_a_thread_spins(void **state)
{
	struct pier_channel *channel = connected(SOON);
	int64_t begin = hurry();

	(void)state;
	expect_ok(pier_channel_set_waiting(channel, PIER_WAIT_POLL, 0));
	fake.completes = true;
	fake.completes_with = IBV_WC_RETRY_EXC_ERR;
	expect_result(pier_channel_recv(channel, NULL, 0, PATIENT, NULL), -ECANCELED);
	expect_asked(1);
	expect_passed(begin, SOON);
	close_channel(channel);
}

static void repeats_keepalives(void **state)
{
	struct pier_channel *channel = connected(SOON);
	int64_t begin = hurry();

	(void)state;
	fake.completes = true;
	expect_result(pier_channel_recv(channel, NULL, 0, 10 * SOON, NULL), -ETIMEDOUT);
	expect_passed(begin, 10 * SOON);
	assert_in_range(fake.logged, 8, 10);
	close_channel(channel);
}

static void sends_while_a_counter_waits(void **state)
{
	struct pier_channel *channel = connected(SOON);
	struct pier_counter *counter = counter_of(&fake.pd);
	struct ibv_mr verbs = { 0 };
	struct pier_mr region = region_of(&fake.pd, &verbs);
	int64_t begin = hurry();

	(void)state;
	expect_ok(pier_counter_bind_imm(counter, &region, channel, 7));
	fake.completes = true;
	fake.completes_with = IBV_WC_RETRY_EXC_ERR;
	expect_result(pier_counter_wait(counter, 1, PATIENT), -EPIPE);
	expect_passed(begin, SOON);
	expect_asked(1);
	test_assert_sentence("keepalive");
	expect_ok(pier_channel_destroy(channel));
	destroy(counter);
}

/* A polling loop does not read the clock each time. */
static void polling_rarely_reads_the_clock(void **state)
{
	struct pier_channel *channel = connected(MINUTE);
	struct pier_work work;
	int polls = 0;

	(void)state;
	expect_ok(pier_channel_post_recv(channel, NULL, 0, &work));
	manual_clock_advance(MINUTE);
	while (fake.logged == 0 && polls++ < 1000)
		assert_int_equal(pier_work_poll(channel, work, NULL), 0);
	assert_in_range(polls, 2, 100);
	expect_asked(1);
	close_channel(channel);
}

static struct pier_channel *member(struct pier_cq *cq, uint32_t keepalive_ms)
{
	struct pier_channel_attr attr;
	struct pier_channel *channel;

	pier_channel_attr_init(&attr);
	attr.max_send_wr = attr.max_recv_wr = DEPTH;
	attr.keepalive_ms = keepalive_ms;
	attr.cq = cq;
	expect_ok(pier_channel_create(&fake.pd, &attr, &channel));
	expect_ok(pier_channel_connect(channel, &peer));
	return channel;
}

static struct pier_cq *shared_cq(void)
{
	struct pier_cq *cq;

	fake_reset();
	expect_ok(pier_cq_create(&fake.pd, NULL, &cq));
	return cq;
}

static void close_shared(struct pier_cq *cq, struct pier_channel *a,
			 struct pier_channel *b)
{
	expect_ok(pier_channel_destroy(a));
	expect_ok(pier_channel_destroy(b));
	assert_int_equal(pier_cq_next_ms(cq), -1);
	expect_ok(pier_cq_destroy(cq));
	assert_int_equal(fake.pd.children, 0);
}

static void queue_says_when_the_next_is_due(void **state)
{
	struct pier_cq *cq = shared_cq();
	struct pier_channel *quiet = member(cq, 0), *a, *ready[4];

	(void)state;
	assert_int_equal(pier_cq_next_ms(cq), -1);
	a = member(cq, MINUTE);
	/* The time of a new channel has not begun. */
	assert_int_equal(pier_cq_next_ms(cq), 0);
	assert_int_equal(pier_cq_poll(cq, ready, 4), 0);
	assert_int_equal(pier_cq_next_ms(cq), MINUTE);
	assert_int_equal(pier_channel_next_ms(quiet), MINUTE);
	manual_clock_advance(MINUTE - 1000);
	assert_int_equal(pier_cq_poll(cq, ready, 4), 0);
	assert_int_equal(pier_cq_next_ms(cq), 1000);
	expect_asked(0);
	manual_clock_advance(1000);
	assert_int_equal(pier_cq_next_ms(cq), 0);
	assert_int_equal(pier_cq_poll(cq, ready, 4), 0);
	expect_asked(1);
	assert_int_equal(pier_cq_next_ms(cq), MINUTE);
	close_shared(cq, a, quiet);
}

static void queue_keeps_the_shortest_time(void **state)
{
	struct pier_cq *cq = shared_cq();
	struct pier_channel *slow = member(cq, 3 * MINUTE), *fast = member(cq, MINUTE);
	struct pier_channel *ready[4];

	(void)state;
	assert_int_equal(pier_cq_poll(cq, ready, 4), 0);
	assert_int_equal(pier_cq_next_ms(cq), MINUTE);
	/* A request that is outstanding fails by itself. */
	expect_ok(pier_channel_post_send(fast, NULL, 0, NULL));
	manual_clock_advance(MINUTE);
	assert_int_equal(pier_cq_poll(cq, ready, 4), 0);
	expect_asked(0);
	manual_clock_advance(MINUTE);
	assert_int_equal(pier_cq_poll(cq, ready, 4), 0);
	manual_clock_advance(MINUTE);
	assert_int_equal(pier_cq_poll(cq, ready, 4), 0);
	expect_asked(1);
	close_shared(cq, slow, fast);
}

static void queue_poll_does_not_wait_for_the_stop(void **state)
{
	struct pier_cq *cq = shared_cq();
	struct pier_channel *a = member(cq, MINUTE), *b = member(cq, 0), *ready[4];
	struct pier_work work;
	int64_t begin;

	(void)state;
	expect_ok(pier_channel_post_recv(a, NULL, 0, &work));
	assert_int_equal(pier_cq_poll(cq, ready, 4), 0);
	manual_clock_advance(MINUTE);
	fake.never_flushes = true;
	fake.fail_call = fake.calls + 1;
	begin = hurry();
	assert_int_equal(pier_cq_poll(cq, ready, 4), 0);
	expect_passed(begin, 0);
	assert_int_equal(pier_cq_next_ms(cq), 1000);
	manual_clock_advance(1000);
	/* Arming another channel of the queue must not lead to sleep. */
	assert_int_equal(pier_channel_arm(b), 1);
	assert_int_equal(pier_cq_poll(cq, ready, 4), 1);
	assert_ptr_equal(ready[0], a);
	expect_result(test_work_wait(a, work, 0, NULL), -ECANCELED);
	fake.fail_call = 0;
	close_shared(cq, a, b);
}

/* While a thread waits for one channel, nobody else looks after the others. */
static void wait_sends_those_of_the_whole_queue(void **state)
{
	struct pier_cq *cq = shared_cq();
	struct pier_channel *waiting = member(cq, 0), *other = member(cq, SOON);
	struct pier_work work;
	struct pier_result result;
	int64_t begin = hurry();

	(void)state;
	expect_ok(pier_channel_post_recv(waiting, NULL, 0, &work));
	expect_result(pier_work_wait(waiting, work, 2 * SOON, &result), -ETIMEDOUT);
	expect_passed(begin, 2 * SOON);
	expect_asked(1);
	close_shared(cq, waiting, other);
}

static void ends_with_a_reset(void **state)
{
	struct pier_channel *channel = connected(MINUTE);

	(void)state;
	manual_clock_advance(MINUTE);
	assert_int_equal(pier_channel_poll(channel), 0);
	expect_asked(1);
	expect_ok(pier_channel_reset(channel));
	assert_int_equal(fake.sends, 0);
	assert_int_equal(pier_channel_error(channel, NULL, 0), 0);
	expect_ok(pier_channel_connect(channel, &peer));
	assert_int_equal(pier_channel_poll(channel), 0);
	expect_asked(1);
	manual_clock_advance(MINUTE);
	assert_int_equal(pier_channel_poll(channel), 0);
	expect_asked(2);
	close_channel(channel);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		counter_case(sends_an_empty_write),
		counter_case(takes_no_place_of_the_caller),
		counter_case(sends_nothing_unless_enabled),
		counter_case(sends_only_after_silence),
		counter_case(reports_that_the_peer_is_gone),
		counter_case(reports_that_the_peer_refuses_it),
		counter_case(stops_if_posting_fails),
		counter_case(poll_does_not_wait_for_the_stop),
		counter_case(sends_while_a_thread_waits),
		counter_case(sends_while_a_thread_spins),
		counter_case(repeats_keepalives),
		counter_case(queue_says_when_the_next_is_due),
		counter_case(queue_keeps_the_shortest_time),
		counter_case(queue_poll_does_not_wait_for_the_stop),
		counter_case(wait_sends_those_of_the_whole_queue),
		counter_case(sends_while_a_counter_waits),
		counter_case(polling_rarely_reads_the_clock),
		counter_case(ends_with_a_reset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
