/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Asynchronous events of the device: what ends a wait, and what the sentence of a broken
 * channel names. The program replaces poll(2) for one test.
 */
#include "tests/support/cmocka.h"
#include "tests/support/expect.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <time.h>

#include <pier/cq.h>
#include <pier/recovery.h>
#include <pier/verbs.h>
#include <pier/waiting.h>

#include "channel/wait.h"
#include "nic/nic.h"

static const struct pier_endpoint peer = {
	.qpn = 0x55,
	.link_layer = PIER_LINK_ETHERNET,
	.gid = { 0xfd, 1 },
};

static struct {
	bool replaced; /* poll(2) returns at once, and the device fails meanwhile */
	int sleeps;
	int timeout_ms; /* of the first */
} sleeper;

int poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
	struct timespec time = { timeout_ms / 1000, timeout_ms % 1000 * 1000000L };

	if (!sleeper.replaced)
		return ppoll(fds, count, timeout_ms < 0 ? NULL : &time, NULL);
	if (sleeper.sleeps++ == 0) {
		sleeper.timeout_ms = timeout_ms;
		fake_report(IBV_EVENT_DEVICE_FATAL, 0);
	} else if (fake.recvs > 0) {
		/* Nobody has looked: end the wait. */
		fake_complete(fake.recv_ids[0], IBV_WC_SUCCESS, IBV_WC_RECV, 0);
	}
	return 0;
}

/* cq: NULL: its own */
static struct pier_channel *create(struct pier_cq *cq)
{
	struct pier_channel *channel = NULL;
	struct pier_channel_attr attr;

	pier_channel_attr_init(&attr);
	attr.max_send_wr = 3;
	attr.max_recv_wr = 2;
	attr.max_send_sge = attr.max_recv_sge = 1;
	attr.cq = cq;
	expect_ok(pier_channel_create(&fake.pd, &attr, &channel));
	expect_ok(pier_channel_connect(channel, &peer));
	return channel;
}

static struct pier_channel *connected(void)
{
	fake_reset();
	return create(NULL);
}

static void destroy(struct pier_channel *channel)
{
	expect_ok(pier_channel_destroy(channel));
	assert_int_equal(fake.qps + fake.cqs + fake.channels, 0);
	assert_int_equal(fake.events_given, fake.events_acked);
}

/* The channel breaks, and the sentence names the event (NULL: none). */
static void expect_explained(struct pier_channel *channel, const char *event)
{
	fake.completes = true;
	fake.completes_with = IBV_WC_RETRY_EXC_ERR;
	expect_result(pier_channel_send(channel, NULL, 0, 60000), -EHOSTUNREACH);
	if (event)
		test_assert_sentence(event);
	else
		assert_null(strstr(pier_error_message(), "IBV_EVENT"));
}

/* poll(2) reports POLLERR for ever, so a wait that ignores it spins until its deadline.
 */
static void ends_the_wait_when_the_device_is_removed(void **state)
{
	struct pier_channel *channel = connected();

	(void)state;
	fake_remove();
	fake.never_flushes = true;
	assert_int_equal(pier_channel_set_waiting(channel, PIER_WAIT_EVENT, 0), 0);
	assert_int_equal(pier_channel_send(channel, NULL, 0, 60000), -EIO);
	assert_non_null(strstr(pier_error_message(), "the device may have been "
						     "removed: Input/output error"));
	assert_int_equal(fake.notifies, 0);
	assert_in_range(fake.polls, 1, 10);
	assert_int_equal(pier_channel_arm(channel), -EIO);
	destroy(channel);
}

/* An event comes at any time: here before the wait, and about another port. */
static void reports_events_of_the_device(void **state)
{
	struct pier_channel *channel = connected();

	(void)state;
	fake_report(IBV_EVENT_PORT_ERR, 2);
	fake_report(IBV_EVENT_PORT_ERR, 1);
	fake_report(IBV_EVENT_PORT_ACTIVE, 1);
	fake.completes = true;
	fake.completes_with = IBV_WC_RETRY_EXC_ERR;
	assert_int_equal(pier_channel_send(channel, NULL, 0, 60000), -EHOSTUNREACH);
	assert_null(strstr(pier_error_message(), "IBV_EVENT"));
	assert_int_equal(fake.device_events_acked, 3);
	destroy(channel);
	channel = connected();
	fake_report(IBV_EVENT_PORT_ERR, 1);
	assert_int_equal(pier_channel_recv(channel, NULL, 0, 1, NULL), -ETIMEDOUT);
	assert_non_null(strstr(pier_error_message(), "within 1 ms"));
	assert_int_equal(pier_channel_post_send(channel, NULL, 0, NULL), -EPIPE);
	assert_non_null(strstr(pier_error_message(), "port 1 is down: the device has "
						     "reported IBV_EVENT_PORT_ERR"));
	destroy(channel);
	channel = connected();
	fake_report_queue_pair(IBV_EVENT_QP_FATAL, pier_channel_verbs_qp(channel));
	fake_report(IBV_EVENT_DEVICE_FATAL, 0);
	assert_int_equal(pier_channel_recv(channel, NULL, 0, 60000, NULL), -EIO);
	assert_non_null(strstr(pier_error_message(), "IBV_EVENT_DEVICE_FATAL"));
	assert_int_equal(fake.device_events_acked, 2);
	destroy(channel);
}

static void forgets_events_of_an_earlier_connection(void **state)
{
	struct pier_channel *channel = connected();

	(void)state;
	fake_report_queue_pair(IBV_EVENT_QP_FATAL, pier_channel_verbs_qp(channel));
	fake.completes = true;
	fake.completes_with = IBV_WC_RETRY_EXC_ERR;
	assert_int_equal(pier_channel_send(channel, NULL, 0, 60000), -EHOSTUNREACH);
	assert_non_null(strstr(pier_error_message(), "IBV_EVENT_QP_FATAL for it"));
	assert_int_equal(pier_channel_reset(channel), 0);
	assert_int_equal(pier_channel_connect(channel, &peer), 0);
	assert_int_equal(pier_channel_send(channel, NULL, 0, 60000), -EHOSTUNREACH);
	assert_null(strstr(pier_error_message(), "IBV_EVENT"));
	destroy(channel);
}

/* A wait sleeps for a second at a time, and the device fails while it sleeps. */
static void looks_for_events_while_it_sleeps(void **state)
{
	struct pier_channel *channel = connected();

	(void)state;
	expect_ok(pier_channel_set_waiting(channel, PIER_WAIT_EVENT, 0));
	fake_report(IBV_EVENT_SQ_DRAINED, 1);
	sleeper.replaced = true;
	expect_result(pier_channel_recv(channel, NULL, 0, 60000, NULL), -EIO);
	sleeper.replaced = false;
	test_assert_sentence("IBV_EVENT_DEVICE_FATAL");
	assert_int_equal(sleeper.sleeps, 1);
	assert_int_equal(sleeper.timeout_ms, PIER_EVENTS_MS);
	destroy(channel);
}

static void remembers_each_port_that_is_down(void **state)
{
	struct pier_channel *channel;

	(void)state;
	for (int last = 1; last <= 2; last++) {
		channel = connected();
		fake_report(IBV_EVENT_PORT_ERR, 3 - last);
		fake_report(IBV_EVENT_PORT_ERR, last);
		expect_explained(channel, "port 1 is down");
		destroy(channel);
	}
	channel = connected();
	fake_report(IBV_EVENT_PORT_ERR, 1);
	fake_report(IBV_EVENT_PORT_ERR, 2);
	fake_report(IBV_EVENT_PORT_ACTIVE, 1);
	expect_explained(channel, NULL);
	destroy(channel);
}

static void remembers_each_queue_pair_that_failed(void **state)
{
	struct pier_channel *channels[PIER_OBJECT_TROUBLES];

	(void)state;
	fake_reset();
	for (int i = 0; i < PIER_OBJECT_TROUBLES; i++)
		channels[i] = create(NULL);
	for (int i = 0; i < PIER_OBJECT_TROUBLES; i++)
		fake_report_queue_pair(i ? IBV_EVENT_QP_FATAL : IBV_EVENT_QP_ACCESS_ERR,
				       pier_channel_verbs_qp(channels[i]));
	fake.cq = pier_channel_verbs_cq(channels[0]);
	expect_explained(channels[0], "IBV_EVENT_QP_ACCESS_ERR for it");
	for (int i = 0; i < PIER_OBJECT_TROUBLES; i++)
		expect_ok(pier_channel_destroy(channels[i]));
}

/* It has overrun, and no channel can use it again. */
static void remembers_a_shared_queue_that_failed(void **state)
{
	struct pier_channel *channels[2];
	struct pier_cq *cq = NULL;
	struct pier_cq_attr attr;

	(void)state;
	pier_cq_attr_init(&attr);
	attr.depth = 20;
	expect_ok(pier_cq_create(fake_reset(), &attr, &cq));
	channels[0] = create(cq);
	fake_report_completion_queue(pier_channel_verbs_cq(channels[0]));
	channels[1] = create(cq);
	expect_explained(channels[0], "IBV_EVENT_CQ_ERR for it");
	for (int i = 0; i < 2; i++)
		expect_ok(pier_channel_destroy(channels[i]));
	expect_ok(pier_cq_destroy(cq));
}

static void forgets_events_of_an_earlier_queue(void **state)
{
	struct pier_channel *channel = connected();

	(void)state;
	fake_report_completion_queue(pier_channel_verbs_cq(channel));
	expect_explained(channel, "IBV_EVENT_CQ_ERR for it");
	fake.reuses_cq = true;
	destroy(channel);
	channel = create(NULL);
	fake.reuses_cq = false;
	expect_explained(channel, NULL);
	destroy(channel);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ends_the_wait_when_the_device_is_removed),
		cmocka_unit_test(reports_events_of_the_device),
		cmocka_unit_test(forgets_events_of_an_earlier_connection),
		cmocka_unit_test(looks_for_events_while_it_sleeps),
		cmocka_unit_test(remembers_each_port_that_is_down),
		cmocka_unit_test(remembers_each_queue_pair_that_failed),
		cmocka_unit_test(remembers_a_shared_queue_that_failed),
		cmocka_unit_test(forgets_events_of_an_earlier_queue),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
