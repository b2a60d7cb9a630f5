/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a scope waits for, collects and reports. The NIC completes what the test says,
 * when it says.
 */
#include "tests/support/cmocka.h"
#include "tests/support/expect.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <pier/post.h>
#include <pier/scope.h>

#include "channel/channel.h"
#include "nic/nic.h"
#include "core/error.h"
#include "core/fork.h"

enum {
	DEPTH = 4,
	LONG = 20000, /* milliseconds, for what happens */
	SHORT = 10,   /* for what does not happen */
	ROOM = 8,
	WAYS_TO_WAIT = 3,
};

static const enum pier_waiting ways_to_wait[WAYS_TO_WAIT] = {
	PIER_WAIT_POLL,
	PIER_WAIT_EVENT,
	PIER_WAIT_ADAPTIVE,
};

static const struct pier_endpoint peer = {
	.qpn = 0x55,
	.link_layer = PIER_LINK_ETHERNET,
	.gid = { 0xfd, 1 },
};

static struct pier_channel *connected(void)
{
	struct pier_channel_attr attr;
	struct pier_channel *channel = NULL;

	pier_channel_attr_init(&attr);
	attr.max_send_wr = attr.max_recv_wr = DEPTH;
	attr.max_send_sge = attr.max_recv_sge = 1;
	attr.timeout_ms = LONG;
	expect_ok(pier_channel_create(fake_reset(), &attr, &channel));
	expect_ok(pier_channel_connect(channel, &peer));
	return channel;
}

static void destroy(struct pier_channel *channel)
{
	expect_ok(pier_channel_destroy(channel));
	assert_int_equal(fake.qps + fake.cqs + fake.channels, 0);
	assert_int_equal(fake.events_given, fake.events_acked);
}

static struct pier_work post_send(struct pier_channel *channel)
{
	struct pier_work work;

	expect_ok(pier_channel_post_send(channel, NULL, 0, &work));
	return work;
}

static struct pier_work post_recv(struct pier_channel *channel)
{
	struct pier_work work;

	expect_ok(pier_channel_post_recv(channel, NULL, 0, &work));
	return work;
}

static void complete(struct pier_work work)
{
	fake_complete(work.id, IBV_WC_SUCCESS, IBV_WC_SEND, 0);
}

static void complete_with(struct pier_work work, enum ibv_wc_status status)
{
	fake_complete(work.id, status, IBV_WC_SEND, 0);
}

static void expect_stale(struct pier_channel *channel, struct pier_work work)
{
	expect_result(pier_work_poll(channel, work, NULL), -ESTALE);
}

/* Room for failures, with a guard behind it. */
struct list {
	struct pier_scope_failure failures[ROOM + 1];
};

static struct pier_scope_attr attr_with(struct list *list, uint32_t room, int timeout_ms)
{
	struct pier_scope_attr attr;

	pier_scope_attr_init(&attr);
	memset(list, 0x5a, sizeof(*list));
	attr.timeout_ms = timeout_ms;
	attr.max_failures = room;
	attr.failures = list->failures;
	return attr;
}

static void expect_listed(const struct list *list, uint32_t index, struct pier_work work,
			  int error)
{
	assert_int_equal(list->failures[index].work.id, work.id);
	assert_int_equal(list->failures[index].result.error, error);
}

static void expect_untouched(const struct list *list, uint32_t from)
{
	const uint8_t *bytes = (const uint8_t *)&list->failures[from];

	for (size_t i = 0; i < (ROOM + 1 - from) * sizeof(list->failures[0]); i++)
		assert_int_equal(bytes[i], 0x5a);
}

static void collect_unasked(enum pier_waiting waiting)
{
	struct pier_channel *channel = connected();
	struct pier_work before = post_send(channel), first, second, receive;
	struct pier_scope_report report;
	struct pier_scope scope;

	channel->attr.waiting = waiting;
	expect_ok(pier_scope_begin(channel, NULL, &scope));
	first = post_send(channel);
	second = post_send(channel);
	receive = post_recv(channel);
	expect_ok(pier_channel_post_send(channel, NULL, 0, NULL));
	complete(before);
	complete(first);
	complete(receive);
	expect_result(pier_work_poll(channel, first, NULL), 1);
	/* The end of the scope must wait for the last one. */
	complete(second);
	fake.complete_at_poll = fake.polls + 30;
	expect_ok(pier_scope_end(&scope, 0, &report));
	assert_int_equal(pier_channel_outstanding(channel), 0);
	assert_int_equal(report.error, 0);
	assert_int_equal(report.drain_error, 0);
	assert_int_equal(report.posted, 4);
	assert_int_equal(report.failed, 0);
	assert_int_equal(report.unpolled, 2);
	assert_int_equal(report.first_unpolled.id, second.id);
	expect_stale(channel, second);
	expect_stale(channel, receive);
	/* The scope does not take the result of a request posted before it. */
	expect_result(pier_work_poll(channel, before, NULL), 1);
	destroy(channel);
}

static void collects_unwatched_requests(void **state)
{
	(void)state;
	for (size_t i = 0; i < WAYS_TO_WAIT; i++)
		collect_unasked(ways_to_wait[i]);
}

/* A receive that never completes does not delay a scope that posted none. */
static void ignores_requests_posted_before(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_work receive = post_recv(channel), send;
	struct pier_scope scope;

	(void)state;
	expect_ok(pier_scope_begin(channel, NULL, &scope));
	send = post_send(channel);
	complete(send);
	expect_ok(pier_scope_end(&scope, 0, NULL));
	assert_int_equal(pier_channel_outstanding(channel), 1);
	expect_result(pier_work_poll(channel, receive, NULL), 0);
	/* A scope in which nothing happened is not delayed either. */
	expect_ok(pier_scope_begin(channel, NULL, &scope));
	expect_ok(pier_scope_end(&scope, 0, NULL));
	destroy(channel);
}

static void stops_a_late_scope(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_work send, receive;
	struct pier_scope_report report;
	struct pier_scope scope;
	struct list list;
	struct pier_scope_attr attr = attr_with(&list, ROOM, SHORT);

	(void)state;
	expect_ok(pier_scope_begin(channel, &attr, &scope));
	send = post_send(channel);
	receive = post_recv(channel);
	expect_ok(pier_channel_post_recv(channel, NULL, 0, NULL));
	expect_result(pier_scope_end(&scope, 0, &report), -ETIMEDOUT);
	test_assert_sentence(
		"3 of the requests of a scope did not complete within its 10 "
		"ms");
	assert_int_equal(fake.state, IBV_QPS_ERR);
	assert_int_equal(pier_channel_outstanding(channel), 0);
	assert_int_equal(report.error, -ETIMEDOUT);
	assert_int_equal(report.drain_error, -ETIMEDOUT);
	assert_int_equal(report.failed, 3);
	expect_listed(&list, 0, send, -ECANCELED);
	expect_listed(&list, 1, receive, -ECANCELED);
	assert_int_equal(list.failures[2].work.id, receive.id + 1);
	expect_untouched(&list, 3);
	expect_result(pier_channel_post_send(channel, NULL, 0, NULL), -EPIPE);
	expect_result(pier_scope_begin(channel, NULL, &scope), -EPIPE);
	destroy(channel);
}

/* A scope whose requests have completed is not late, however long its body took. */
static void polls_once_more_at_the_deadline(void **state)
{
	(void)state;
	for (size_t i = 0; i < WAYS_TO_WAIT; i++) {
		struct pier_scope_attr attr;
		struct pier_channel *channel = connected();
		struct pier_scope scope;

		pier_scope_attr_init(&attr);
		channel->attr.waiting = ways_to_wait[i];
		attr.timeout_ms = 0;
		expect_ok(pier_scope_begin(channel, &attr, &scope));
		complete(post_send(channel));
		expect_ok(pier_scope_end(&scope, 0, NULL));
		destroy(channel);
	}
}

static void ends_despite_a_dead_device(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_scope_report report;
	struct pier_scope scope;
	struct list list;
	struct pier_scope_attr attr = attr_with(&list, ROOM, SHORT);

	(void)state;
	fake.never_flushes = true;
	expect_ok(pier_scope_begin(channel, &attr, &scope));
	post_send(channel);
	expect_ok(pier_channel_post_send(channel, NULL, 0, NULL));
	expect_result(pier_scope_end(&scope, 0, &report), -ETIMEDOUT);
	assert_int_equal(fake.state, IBV_QPS_RESET);
	assert_int_equal(pier_channel_outstanding(channel), 0);
	assert_int_equal(report.failed, 2);
	expect_untouched(&list, 2);
	destroy(channel);
}

static void stops_when_waiting_fails(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_scope_report report;
	struct pier_scope scope;

	(void)state;
	expect_ok(pier_scope_begin(channel, NULL, &scope));
	post_send(channel);
	fake.poll_error = -1;
	expect_result(pier_scope_end(&scope, 0, &report), -EIO);
	test_assert_sentence("ibv_poll_cq");
	assert_int_equal(report.drain_error, -EIO);
	assert_int_equal(report.failed, 1);
	assert_int_equal(pier_channel_outstanding(channel), 0);
	destroy(channel);
}

/* The first failure that is not a flush is the cause, wherever it is. */
static void reports_every_failure(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_work first, taken, third, receive;
	struct pier_scope_report report;
	struct pier_result result;
	struct pier_scope scope;
	struct list list;
	struct pier_scope_attr attr = attr_with(&list, ROOM, LONG);

	(void)state;
	expect_ok(pier_scope_begin(channel, &attr, &scope));
	receive = post_recv(channel);
	first = post_send(channel);
	expect_ok(pier_channel_post_send(channel, NULL, 0, NULL));
	taken = post_send(channel);
	third = post_send(channel);
	complete_with(receive, IBV_WC_WR_FLUSH_ERR);
	complete(first);
	/* Nobody watches the second. */
	complete_with((struct pier_work){ first.id + 1 }, IBV_WC_REM_ACCESS_ERR);
	complete_with(taken, IBV_WC_WR_FLUSH_ERR);
	complete_with(third, IBV_WC_WR_FLUSH_ERR);
	expect_result(pier_work_poll(channel, taken, &result), 1);
	assert_int_equal(result.error, -ECANCELED);
	expect_result(pier_scope_end(&scope, 0, &report), -EACCES);
	test_assert_sentence("3 of the 5 requests of a scope");
	test_assert_sentence("IBV_WC_REM_ACCESS_ERR");
	assert_int_equal(report.drain_error, -EACCES);
	assert_int_equal(report.body_error, 0);
	assert_int_equal(report.failed, 3);
	assert_int_equal(report.unpolled, 3);
	assert_int_equal(report.cause.work.id, first.id + 1);
	assert_int_equal(report.cause.result.vendor_error, 0x77);
	expect_listed(&list, 0, report.cause.work, -EACCES);
	expect_listed(&list, 1, third, -ECANCELED);
	expect_listed(&list, 2, receive, -ECANCELED);
	expect_untouched(&list, 3);
	destroy(channel);
}

/* The body got the cause, and the end repeats its sentence. */
static void reports_the_cause_of_a_flush(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_scope_report report;
	struct pier_work first, second;
	struct pier_scope scope;

	(void)state;
	expect_ok(pier_scope_begin(channel, NULL, &scope));
	first = post_send(channel);
	second = post_send(channel);
	complete_with(first, IBV_WC_RNR_RETRY_EXC_ERR);
	complete_with(second, IBV_WC_WR_FLUSH_ERR);
	expect_result(test_work_wait(channel, first, 0, NULL), -EAGAIN);
	expect_result(pier_scope_end(&scope, 0, &report), -ECANCELED);
	test_assert_sentence("flushed, because of this: send failed: "
			     "IBV_WC_RNR_RETRY_EXC_ERR");
	assert_int_equal(report.failed, 1);
	destroy(channel);
}

static void reports_failures_of_the_body_separately(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_scope_report report;
	struct pier_work work;
	struct pier_scope scope;

	(void)state;
	expect_ok(pier_scope_begin(channel, NULL, &scope));
	work = post_send(channel);
	complete_with(work, IBV_WC_REM_OP_ERR);
	pier_fail(ENODATA, "the body had nothing to say");
	expect_result(pier_scope_end(&scope, -ENODATA, &report), -ENODATA);
	test_assert_sentence(
		"the body had nothing to say; and when its scope ended: 1 of "
		"the 1 requests");
	test_assert_sentence("IBV_WC_REM_OP_ERR");
	assert_int_equal(report.error, -ENODATA);
	assert_int_equal(report.body_error, -ENODATA);
	assert_int_equal(report.drain_error, -EREMOTEIO);
	destroy(channel);
	/* Without another error the sentence of the body stays, whatever the end did. */
	channel = connected();
	expect_ok(pier_scope_begin(channel, NULL, &scope));
	complete(post_send(channel));
	pier_fail(ENODATA, "the body had nothing to say");
	expect_result(pier_scope_end(&scope, 17, &report), 17);
	assert_string_equal(pier_error_message(), "the body had nothing to say");
	assert_int_equal(report.drain_error, 0);
	destroy(channel);
}

/* Failures that do not fit are counted; later failures do not displace earlier ones. */
static void lists_failures_up_to_the_limit(void **state)
{
	(void)state;
	for (uint32_t room = 0; room <= DEPTH; room++) {
		struct pier_channel *channel = connected();
		struct pier_work work[DEPTH];
		struct pier_scope_report report;
		struct pier_scope scope;
		struct list list;
		struct pier_scope_attr attr = attr_with(&list, room, LONG);

		expect_ok(pier_scope_begin(channel, &attr, &scope));
		for (int i = 0; i < DEPTH; i++) {
			work[i] = post_send(channel);
			/* The last ones are noted at once, the first ones at the end. */
			if (i >= 2)
				expect_ok(pier_work_drop(channel, work[i]));
		}
		for (int i = 0; i < DEPTH; i++)
			complete_with(work[i],
				      i ? IBV_WC_WR_FLUSH_ERR : IBV_WC_REM_OP_ERR);
		assert_true(pier_channel_poll(channel) == DEPTH);
		expect_result(pier_scope_end(&scope, 0, &report), -EREMOTEIO);
		assert_int_equal(report.failed, DEPTH);
		assert_int_equal(report.cause.work.id, work[0].id);
		for (uint32_t i = 0; i < room; i++)
			assert_int_equal(list.failures[i].work.id, work[i].id);
		expect_untouched(&list, room);
		destroy(channel);
	}
}

/* Dropped after it failed: only the scope can report it. */
static void reports_failures_of_dropped_requests(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_scope_report report;
	struct pier_work work;
	struct pier_scope scope;

	(void)state;
	expect_ok(pier_scope_begin(channel, NULL, &scope));
	work = post_send(channel);
	complete_with(work, IBV_WC_REM_OP_ERR);
	assert_int_equal(pier_channel_poll(channel), 1);
	expect_ok(pier_work_drop(channel, work));
	expect_result(pier_scope_end(&scope, 0, &report), -EREMOTEIO);
	assert_int_equal(report.failed, 1);
	assert_int_equal(report.unpolled, 0);
	destroy(channel);
}

static struct pier_scope_attr manual(void)
{
	struct pier_scope_attr attr;

	pier_scope_attr_init(&attr);
	attr.flags = PIER_SCOPE_MANUAL;
	return attr;
}

static void reports_requests_a_manual_body_forgot(void **state)
{
	struct pier_scope_attr attr = manual();
	struct pier_channel *channel = connected();
	struct pier_work first, second, receive;
	struct pier_scope_report report;
	struct pier_scope scope;

	(void)state;
	expect_ok(pier_scope_begin(channel, &attr, &scope));
	first = post_send(channel);
	second = post_send(channel);
	receive = post_recv(channel);
	complete(first);
	expect_ok(test_work_wait(channel, first, LONG, NULL));
	complete(receive);
	assert_int_equal(pier_channel_poll(channel), 1);
	fake.complete_at_poll = fake.polls + 5;
	expect_result(pier_scope_end(&scope, 0, &report), -ENOTEMPTY);
	test_assert_sentence("did not ask for 2 of its handles");
	test_assert_sentence("of the send queue");
	assert_int_equal(report.unpolled, 2);
	assert_int_equal(report.first_unpolled.id, second.id);
	/* Its completion is collected all the same. */
	assert_int_equal(report.drain_error, 0);
	assert_int_equal(pier_channel_outstanding(channel), 0);
	expect_stale(channel, second);
	destroy(channel);
}

static void lets_a_manual_body_fail(void **state)
{
	struct pier_scope_attr attr = manual();
	struct pier_channel *channel = connected();
	struct pier_scope_report report;
	struct pier_work work;
	struct pier_scope scope;

	(void)state;
	expect_ok(pier_scope_begin(channel, &attr, &scope));
	complete(post_send(channel));
	expect_result(pier_scope_end(&scope, -EIO, &report), -EIO);
	assert_int_equal(report.unpolled, 1);
	/* Nobody polls a request without a handle, or one that was dropped. */
	expect_ok(pier_scope_begin(channel, &attr, &scope));
	expect_ok(pier_channel_post_send(channel, NULL, 0, NULL));
	work = post_send(channel);
	expect_ok(pier_work_drop(channel, work));
	complete(work);
	expect_ok(pier_scope_end(&scope, 0, &report));
	assert_int_equal(report.unpolled, 0);
	/* A failed request takes precedence over the body's mistake. */
	expect_ok(pier_scope_begin(channel, &attr, &scope));
	complete_with(post_send(channel), IBV_WC_REM_OP_ERR);
	expect_result(pier_scope_end(&scope, 0, &report), -EREMOTEIO);
	assert_int_equal(report.unpolled, 1);
	destroy(channel);
}

/*
 * The ring wraps around: results set aside are found, requests that were not posted are
 * not.
 */
static void finds_results_set_aside(void **state)
{
	struct pier_scope_attr attr = manual();
	struct pier_channel *channel = connected();
	struct pier_work kept[2], work;
	struct pier_scope_report report;
	struct pier_scope scope;

	(void)state;
	fake.completes = true;
	expect_ok(pier_scope_begin(channel, &attr, &scope));
	kept[0] = post_send(channel);
	kept[1] = post_send(channel);
	for (int i = 0; i < 10 * DEPTH; i++) {
		work = post_send(channel);
		expect_result(pier_work_poll(channel, work, NULL), 1);
	}
	expect_result(pier_scope_end(&scope, 0, &report), -ENOTEMPTY);
	assert_int_equal(report.posted, 2 + 10 * DEPTH);
	assert_int_equal(report.unpolled, 2);
	assert_int_equal(report.first_unpolled.id, kept[0].id);
	expect_stale(channel, kept[0]);
	expect_stale(channel, kept[1]);
	destroy(channel);
}

static void does_not_count_refused_requests(void **state)
{
	struct pier_scope_attr attr = manual();
	struct pier_channel *channel = connected();
	struct pier_scope_report report;
	struct pier_scope scope;
	struct pier_work work;

	(void)state;
	expect_ok(pier_scope_begin(channel, &attr, &scope));
	for (int i = 0; i < DEPTH; i++) {
		work = post_recv(channel);
		complete(work);
		expect_ok(test_work_wait(channel, work, LONG, NULL));
	}
	fake.fail_call = fake.calls + 1;
	assert_true(pier_channel_post_recv(channel, NULL, 0, &work) < 0);
	expect_ok(pier_scope_end(&scope, 0, &report));
	assert_int_equal(report.posted, DEPTH);
	destroy(channel);
}

static void can_be_nested(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_scope_report outer_report, inner_report;
	struct pier_work early, within, late;
	struct pier_scope outer, inner;
	struct pier_scope_attr attr;

	pier_scope_attr_init(&attr);
	(void)state;
	expect_ok(pier_scope_begin(channel, NULL, &outer));
	early = post_send(channel);
	attr.timeout_ms = LONG;
	expect_ok(pier_scope_begin(channel, &attr, &inner));
	within = post_send(channel);
	expect_ok(pier_channel_post_send(channel, NULL, 0, NULL));
	complete(early);
	complete_with(within, IBV_WC_REM_OP_ERR);
	complete_with((struct pier_work){ within.id + 1 }, IBV_WC_WR_FLUSH_ERR);
	expect_result(pier_scope_end(&inner, 0, &inner_report), -EREMOTEIO);
	assert_int_equal(inner_report.posted, 2);
	assert_int_equal(inner_report.failed, 2);
	expect_result(pier_channel_post_send(channel, NULL, 0, &late), -EPIPE);
	/* The inner scope has reported the failures. */
	expect_ok(pier_scope_end(&outer, 0, &outer_report));
	assert_int_equal(outer_report.posted, 1);
	assert_int_equal(outer_report.failed, 0);
	assert_int_equal(outer_report.unpolled, 1);
	assert_int_equal(outer_report.first_unpolled.id, early.id);
	destroy(channel);
}

/* A failure while an inner scope is open belongs to the scope that posted the request. */
static void assigns_failures_to_their_scope(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_scope_report outer_report, inner_report;
	struct pier_scope outer, inner;

	(void)state;
	expect_ok(pier_channel_post_recv(channel, NULL, 0, NULL));
	expect_ok(pier_scope_begin(channel, NULL, &outer));
	expect_ok(pier_channel_post_recv(channel, NULL, 0, NULL));
	expect_ok(pier_scope_begin(channel, NULL, &inner));
	expect_ok(pier_channel_post_send(channel, NULL, 0, NULL));
	complete_with((struct pier_work){ fake.recv_ids[0] }, IBV_WC_LOC_PROT_ERR);
	complete_with((struct pier_work){ fake.recv_ids[0] }, IBV_WC_WR_FLUSH_ERR);
	complete_with((struct pier_work){ fake.send_ids[0] }, IBV_WC_WR_FLUSH_ERR);
	expect_result(pier_scope_end(&inner, 0, &inner_report), -ECANCELED);
	assert_int_equal(inner_report.failed, 1);
	test_assert_sentence("because of this: receive failed: IBV_WC_LOC_PROT_ERR");
	expect_result(pier_scope_end(&outer, 0, &outer_report), -ECANCELED);
	assert_int_equal(outer_report.failed, 1);
	destroy(channel);
}

/* An inner scope has no later deadline. */
static void respects_the_outer_deadline(void **state)
{
	struct pier_scope_attr attr;
	struct pier_channel *channel = connected();
	struct pier_scope outer, inner;

	pier_scope_attr_init(&attr);
	(void)state;
	attr.timeout_ms = SHORT;
	expect_ok(pier_scope_begin(channel, &attr, &outer));
	attr.timeout_ms = LONG;
	expect_ok(pier_scope_begin(channel, &attr, &inner));
	post_send(channel);
	expect_result(pier_scope_end(&inner, 0, NULL), -ETIMEDOUT);
	test_assert_sentence("within its 10 ms");
	expect_ok(pier_scope_end(&outer, 0, NULL));
	destroy(channel);
}

static void refuses_to_end_out_of_order(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_scope_report report;
	struct pier_scope outermost, outer, inner;

	(void)state;
	expect_ok(pier_scope_begin(channel, NULL, &outer));
	expect_ok(pier_scope_begin(channel, NULL, &inner));
	post_send(channel);
	fake.complete_at_poll = fake.polls + 20;
	expect_result(pier_scope_end(&outer, 0, &report), -EBUSY);
	assert_int_equal(report.error, -EBUSY);
	assert_int_equal(pier_channel_outstanding(channel), 0);
	expect_result(pier_scope_end(&inner, 0, &report), -EALREADY);
	expect_result(pier_scope_end(&outer, 0, &report), -EALREADY);
	/* Also within one that continues. */
	expect_ok(pier_scope_begin(channel, NULL, &outermost));
	expect_ok(pier_scope_begin(channel, NULL, &outer));
	expect_ok(pier_scope_begin(channel, NULL, &inner));
	expect_result(pier_scope_end(&outer, 0, NULL), -EBUSY);
	expect_result(pier_scope_end(&inner, 0, NULL), -EALREADY);
	expect_ok(pier_scope_end(&outermost, 0, NULL));
	/* The channel is as before. */
	expect_ok(pier_scope_begin(channel, NULL, &outer));
	complete(post_send(channel));
	expect_ok(pier_scope_end(&outer, 0, &report));
	assert_int_equal(report.posted, 1);
	destroy(channel);
}

static void limits_requests_in_flight(void **state)
{
	struct pier_scope_attr attr;
	struct pier_channel *channel = connected();
	struct pier_scope_report report;
	struct pier_scope scope;

	pier_scope_attr_init(&attr);
	(void)state;
	/* Requests from before count: the window begins overfull. */
	for (int i = 0; i < 3; i++)
		expect_ok(pier_channel_post_send(channel, NULL, 0, NULL));
	attr.window = 2;
	expect_ok(pier_scope_begin(channel, &attr, &scope));
	assert_int_equal(pier_channel_send_room(channel), 0);
	for (int i = 0; i < 20; i++) {
		fake.complete_at_poll = fake.polls + 7;
		if (i == 0)
			complete((struct pier_work){ fake.send_ids[0] });
		expect_ok(pier_channel_post_send(channel, NULL, 0, NULL));
		assert_true(fake.sends <= 2);
	}
	/* An inner scope waits for the same window, and may have a smaller one. */
	attr.window = 1;
	{
		struct pier_scope inner;

		expect_ok(pier_scope_begin(channel, &attr, &inner));
		complete((struct pier_work){ fake.send_ids[0] });
		fake.complete_at_poll = fake.polls + 7;
		expect_ok(pier_channel_post_send(channel, NULL, 0, NULL));
		assert_int_equal(fake.sends, 1);
		fake.complete_at_poll = fake.polls + 7;
		expect_ok(pier_scope_end(&inner, 0, NULL));
		expect_ok(pier_scope_begin(channel, NULL, &inner));
		assert_int_equal(pier_channel_send_room(channel), 2);
		expect_ok(pier_scope_end(&inner, 0, NULL));
	}
	fake.completes = true;
	expect_ok(pier_scope_end(&scope, 0, &report));
	assert_int_equal(report.posted, 20);
	fake.completes = false;
	/* Without a scope a full queue is an error. */
	assert_int_equal(pier_channel_send_room(channel), DEPTH);
	for (int i = 0; i < DEPTH; i++)
		expect_ok(pier_channel_post_send(channel, NULL, 0, NULL));
	expect_result(pier_channel_post_send(channel, NULL, 0, NULL), -EAGAIN);
	destroy(channel);
}

static void waits_for_room_until_its_deadline(void **state)
{
	struct pier_scope_attr attr;
	struct pier_channel *channel = connected();
	struct pier_request batch[3] = { { .opcode = PIER_OP_SEND },
					 { .opcode = PIER_OP_SEND },
					 { .opcode = PIER_OP_SEND } };
	struct pier_scope scope;

	pier_scope_attr_init(&attr);
	(void)state;
	attr.window = 2;
	attr.timeout_ms = SHORT;
	expect_ok(pier_scope_begin(channel, &attr, &scope));
	/* A request that can never fit is refused at once. */
	expect_result(pier_channel_post_batch(channel, batch, 3, NULL), -E2BIG);
	expect_ok(pier_channel_post_batch(channel, batch, 2, NULL));
	expect_result(pier_channel_post_send(channel, NULL, 0, NULL), -ETIMEDOUT);
	test_assert_sentence("window of 2 within the 10 ms");
	/* That stops nothing. */
	assert_int_equal(fake.state, IBV_QPS_RTS);
	/*
	 * Receives do not count in the window: waiting for them would be waiting for
	 * the peer.
	 */
	for (int i = 0; i < DEPTH; i++)
		expect_ok(pier_channel_post_recv(channel, NULL, 0, NULL));
	expect_result(pier_channel_post_recv(channel, NULL, 0, NULL), -EAGAIN);
	expect_result(pier_scope_end(&scope, 0, NULL), -ETIMEDOUT);
	destroy(channel);
	/* A window cannot exceed the queue. */
	channel = connected();
	attr.window = 1000;
	attr.timeout_ms = LONG;
	expect_ok(pier_scope_begin(channel, &attr, &scope));
	for (int i = 0; i < DEPTH; i++)
		expect_ok(pier_channel_post_send(channel, NULL, 0, NULL));
	fake.complete_at_poll = fake.polls + 7;
	expect_ok(pier_channel_post_send(channel, NULL, 0, NULL));
	destroy(channel);
	expect_result(pier_scope_end(&scope, 0, NULL), -ECANCELED);
}

/* A handle identifies a request, not its place. */
static void keeps_more_results_than_its_window(void **state)
{
	struct pier_scope_attr attr;
	struct pier_channel *channel = connected();
	struct pier_work work[DEPTH];
	struct pier_scope scope;

	pier_scope_attr_init(&attr);
	(void)state;
	fake.completes = true;
	for (int i = 0; i < DEPTH; i++)
		work[i] = post_send(channel);
	assert_int_equal(pier_channel_poll(channel), DEPTH);
	attr.window = 1;
	expect_ok(pier_scope_begin(channel, &attr, &scope));
	for (int i = 0; i < DEPTH; i++)
		expect_ok(pier_channel_post_send(channel, NULL, 0, NULL));
	for (int i = 0; i < DEPTH; i++)
		expect_result(pier_work_poll(channel, work[i], NULL), 1);
	expect_ok(pier_scope_end(&scope, 0, NULL));
	destroy(channel);
}

static void outlives_its_channel(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_scope_report report;
	struct pier_scope outer, inner;
	struct pier_work early, late;
	struct list list;
	struct pier_scope_attr attr = attr_with(&list, ROOM, LONG);

	(void)state;
	expect_ok(pier_scope_begin(channel, NULL, &outer));
	early = post_send(channel);
	complete(early);
	expect_ok(pier_scope_begin(channel, &attr, &inner));
	late = post_send(channel);
	expect_ok(pier_channel_post_recv(channel, NULL, 0, NULL));
	assert_int_equal(pier_channel_poll(channel), 1);
	destroy(channel);
	expect_result(pier_scope_end(&inner, 0, &report), -ECANCELED);
	test_assert_sentence("2 of the 2 requests of a scope: outstanding when the "
			     "channel was destroyed");
	assert_int_equal(report.failed, 2);
	assert_int_equal(report.unpolled, 1);
	expect_listed(&list, 0, late, -ECANCELED);
	expect_untouched(&list, 2);
	/* All requests of this one had completed. */
	expect_ok(pier_scope_end(&outer, 0, &report));
	assert_int_equal(report.posted, 1);
	assert_int_equal(report.unpolled, 1);
	expect_result(pier_scope_end(&outer, 0, &report), -EALREADY);
}

static void refuses_invalid_attributes(void **state)
{
	struct pier_scope_attr attr;
	struct pier_channel *channel = connected();
	struct pier_scope scope;

	pier_scope_attr_init(&attr);
	(void)state;
	attr.flags = PIER_SCOPE_MANUAL | 6;
	expect_result(pier_scope_begin(channel, &attr, &scope), -EINVAL);
	test_assert_sentence("flags 0x6");
	pier_scope_attr_init(&attr);
	attr.max_failures = 3;
	expect_result(pier_scope_begin(channel, &attr, &scope), -EINVAL);
	test_assert_sentence("3 failures at NULL");
	pier_scope_attr_init(&attr);
	attr.timeout_ms = -2;
	expect_result(pier_scope_begin(channel, &attr, &scope), -EINVAL);
	attr.size = 3;
	expect_result(pier_scope_begin(channel, &attr, &scope), -EINVAL);
	test_assert_sentence("pier_scope_attr_init()");
	expect_ok(pier_channel_post_send(channel, NULL, 0, NULL));
	destroy(channel);
}

static void child_cannot_use_the_scope(void **state)
{
	struct pier_channel *channel;
	struct pier_scope scope;
	int status = 0;
	pid_t child;

	(void)state;
	expect_ok(pier_watch_forks());
	channel = connected();
	expect_ok(pier_scope_begin(channel, NULL, &scope));
	child = fork();
	if (child == 0) {
		struct pier_scope_report report = { .posted = 7 };
		struct pier_scope another;
		bool good = pier_scope_end(&scope, 0, &report) == -ECHILD &&
			    report.posted == 7 &&
			    pier_scope_begin(channel, NULL, &another) == -ECHILD;

		PIER_SCOPE(channel, NULL, &report)
		good = false;
		_exit(good && report.error == -ECHILD ? 0 : 1);
	}
	assert_true(child > 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	complete(post_send(channel));
	expect_ok(pier_scope_end(&scope, 0, NULL));
	destroy(channel);
}

/* The ways out of a block. Each leaves a request that completes later. */
enum way {
	FALL_OFF,
	BREAK,
	CONTINUE,
	RETURN,
	GOTO
};

static void leave(struct pier_channel *channel, enum way way,
		  struct pier_scope_report *report)
{
	PIER_SCOPE(channel, NULL, report)
	{
		post_send(channel);
		fake.complete_at_poll = fake.polls + 40;
		report->body_error = (int)way;
		if (way == BREAK)
			break;
		if (way == CONTINUE)
			continue;
		if (way == RETURN)
			return;
		if (way == GOTO)
			goto out;
	}
	assert_int_not_equal(way, RETURN);
	assert_int_not_equal(way, GOTO);
out:
	assert_int_equal(pier_channel_outstanding(channel), 0);
}

static void end_by(enum way way, enum pier_waiting waiting)
{
	struct pier_channel *channel = connected();
	struct pier_scope_report report;

	channel->attr.waiting = waiting;
	memset(&report, 0x5a, sizeof(report));
	leave(channel, way, &report);
	assert_int_equal(pier_channel_outstanding(channel), 0);
	assert_null(channel->scope);
	assert_int_equal(report.error, (int)way);
	assert_int_equal(report.body_error, (int)way);
	assert_int_equal(report.posted, 1);
	assert_int_equal(report.drain_error, 0);
	destroy(channel);
}

/* The request completes while the scope polls, or while it sleeps. */
static void ends_on_every_way_out(void **state)
{
	(void)state;
	for (enum way way = FALL_OFF; way <= GOTO; way++) {
		for (size_t i = 0; i < WAYS_TO_WAIT; i++)
			end_by(way, ways_to_wait[i]);
	}
}

static void evaluates_its_arguments_once(void **state)
{
	struct pier_channel *channels[] = { connected(), NULL }, **at = channels;
	struct pier_scope_report reports[2], *report = reports;
	struct pier_scope_attr attrs[2] = { { .size = 0 } }, *attr = attrs;
	int runs = 0;

	(void)state;
	pier_scope_attr_init(&attrs[0]);
	PIER_SCOPE(*at++, attr++, report++)
	{
		runs++;
		/* Within another scope on the same channel. */
		PIER_SCOPE(channels[0], NULL, &reports[1])
		complete(post_send(channels[0]));
		assert_int_equal(reports[1].posted, 1);
	}
	assert_int_equal(runs, 1);
	assert_ptr_equal(at, channels + 1);
	assert_ptr_equal(attr, attrs + 1);
	assert_ptr_equal(report, reports + 1);
	assert_int_equal(reports[0].error, 0);
	assert_int_equal(reports[0].posted, 0);
	/* A scope that cannot begin does not run. */
	PIER_SCOPE(channels[0], &attrs[1], &reports[0])
	runs++;
	assert_int_equal(runs, 1);
	assert_int_equal(reports[0].error, -EINVAL);
	destroy(channels[0]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(collects_unwatched_requests),
		cmocka_unit_test(ignores_requests_posted_before),
		cmocka_unit_test(stops_a_late_scope),
		cmocka_unit_test(polls_once_more_at_the_deadline),
		cmocka_unit_test(ends_despite_a_dead_device),
		cmocka_unit_test(stops_when_waiting_fails),
		cmocka_unit_test(reports_every_failure),
		cmocka_unit_test(reports_the_cause_of_a_flush),
		cmocka_unit_test(reports_failures_of_the_body_separately),
		cmocka_unit_test(lists_failures_up_to_the_limit),
		cmocka_unit_test(reports_failures_of_dropped_requests),
		cmocka_unit_test(reports_requests_a_manual_body_forgot),
		cmocka_unit_test(lets_a_manual_body_fail),
		cmocka_unit_test(finds_results_set_aside),
		cmocka_unit_test(does_not_count_refused_requests),
		cmocka_unit_test(can_be_nested),
		cmocka_unit_test(assigns_failures_to_their_scope),
		cmocka_unit_test(respects_the_outer_deadline),
		cmocka_unit_test(refuses_to_end_out_of_order),
		cmocka_unit_test(limits_requests_in_flight),
		cmocka_unit_test(waits_for_room_until_its_deadline),
		cmocka_unit_test(keeps_more_results_than_its_window),
		cmocka_unit_test(outlives_its_channel),
		cmocka_unit_test(refuses_invalid_attributes),
		cmocka_unit_test(child_cannot_use_the_scope),
		cmocka_unit_test(ends_on_every_way_out),
		cmocka_unit_test(evaluates_its_arguments_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
