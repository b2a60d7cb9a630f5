/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared completion queues. The NIC completes what the test says. */
#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>

#include <pier/pier.h>

#include "channel/cq/members.h"
#include "channel/wait.h"
#include "nic/nic.h"

enum {
	KEY = 5,
	DEPTH = 16,
	SENDS = 3,
	RECVS = 1,
	RESERVED = SENDS + RECVS, /* of a channel */
};

static const struct pier_endpoint peer = {
	.qpn = 0x55,
	.link_layer = PIER_LINK_ETHERNET,
	.gid = { 0xfd, 1 },
	.max_rd_atomic = 4,
};
static const struct pier_gather source = { 0x1000, 8, KEY };
static const struct pier_scatter target = { 0x1000, 8, KEY };

/* A queue with two connected channels. */
struct fixture {
	struct test_census before;
	struct pier_cq *cq;
	struct pier_channel *a, *b;
};

static struct pier_cq *make_cq(uint32_t depth)
{
	struct pier_cq_attr attr;
	struct pier_cq *cq = NULL;

	pier_cq_attr_init(&attr);
	attr.depth = depth;
	expect_ok(pier_cq_create(&fake.pd, &attr, &cq));
	return cq;
}

static struct pier_channel_attr attr_of(struct pier_cq *cq)
{
	struct pier_channel_attr attr;

	pier_channel_attr_init(&attr);
	attr.max_send_wr = SENDS;
	attr.max_recv_wr = RECVS;
	attr.max_send_sge = attr.max_recv_sge = 1;
	attr.waiting = PIER_WAIT_EVENT;
	attr.cq = cq;
	/* Ignored. */
	attr.cq_depth = attr.comp_vector = 1000;
	return attr;
}

static struct pier_channel *make_channel(struct pier_cq *cq)
{
	struct pier_channel_attr attr = attr_of(cq);
	struct pier_channel *channel = NULL;

	attr.context = &fake.port;
	expect_ok(pier_channel_create(&fake.pd, &attr, &channel));
	expect_ok(pier_channel_connect(channel, &peer));
	return channel;
}

static struct fixture open_fixture(void)
{
	struct fixture fixture;

	fake_reset();
	fixture.before = test_take_census();
	fixture.cq = make_cq(DEPTH);
	fixture.a = make_channel(fixture.cq);
	fixture.b = make_channel(fixture.cq);
	return fixture;
}

static void close_fixture(struct fixture *fixture)
{
	expect_ok(pier_channel_destroy(fixture->a));
	expect_ok(pier_channel_destroy(fixture->b));
	assert_int_equal(pier_cq_room(fixture->cq), DEPTH);
	expect_ok(pier_cq_destroy(fixture->cq));
	assert_int_equal(atomic_load(&fake.pd.children), 0);
	assert_int_equal(fake.qps + fake.cqs + fake.channels, 0);
	assert_int_equal(fake.events_given, fake.events_acked);
	test_assert_census(&fixture->before);
}

static struct pier_work post(struct pier_channel *channel)
{
	struct pier_work work = { 0 };

	expect_ok(pier_channel_post_send(channel, &source, 1, &work));
	return work;
}

static void complete(struct pier_work work, enum ibv_wc_status status)
{
	fake_complete(work.id, status, IBV_WC_SEND, 0);
}

static void expect_pending(struct pier_channel *channel, struct pier_work work)
{
	struct pier_result result;

	expect_result(pier_work_poll(channel, work, &result), 0);
}

static void expect_done(struct pier_channel *channel, struct pier_work work, int error)
{
	struct pier_result result;

	expect_result(pier_work_poll(channel, work, &result), 1);
	assert_int_equal(result.error, error);
}

/* pier_cq_poll() returns these channels, in this order. */
static void expect_news(struct pier_cq *cq, struct pier_channel *first,
			struct pier_channel *second)
{
	struct pier_channel *ready[3] = { NULL };
	int count = pier_cq_poll(cq, ready, 3);

	assert_int_equal(count, !!first + !!second);
	assert_ptr_equal(ready[0], first);
	assert_ptr_equal(ready[1], second);
}

static void has_one_queue_and_one_fd(void **state)
{
	struct fixture fixture = open_fixture();
	struct pier_channel_attr attr;

	(void)state;
	assert_int_equal(fake.cqs, 1);
	assert_int_equal(fake.channels, 1);
	assert_int_equal(fake.cq->cqe, DEPTH);
	assert_ptr_equal(fake.last_qp.send_cq, fake.cq);
	assert_ptr_equal(fake.last_qp.recv_cq, fake.cq);
	assert_ptr_equal(pier_channel_verbs_cq(fixture.a), fake.cq);
	assert_int_equal(pier_cq_fd(fixture.cq), fake.cq->channel->fd);
	assert_int_equal(pier_channel_fd(fixture.a), pier_cq_fd(fixture.cq));
	assert_int_equal(pier_channel_fd(fixture.b), pier_cq_fd(fixture.cq));
	assert_ptr_equal(pier_channel_context(fixture.a), &fake.port);
	pier_channel_attr_init(&attr);
	pier_channel_query(fixture.b, &attr, sizeof(attr));
	assert_ptr_equal(attr.cq, fixture.cq);
	assert_int_equal(attr.cq_depth, DEPTH);
	assert_int_equal(attr.comp_vector, fake.comp_vector);
	assert_int_equal(pier_object_count(PIER_OBJECT_CQ), 1);
	close_fixture(&fixture);
}

static void gives_each_channel_its_completions(void **state)
{
	struct fixture fixture = open_fixture();
	struct pier_work a[2], b[2], received;

	(void)state;
	for (int i = 0; i < 2; i++) {
		a[i] = post(fixture.a);
		b[i] = post(fixture.b);
	}
	expect_ok(pier_channel_post_recv(fixture.b, &target, 1, &received));
	complete(b[0], IBV_WC_SUCCESS);
	expect_pending(fixture.a, a[0]);
	expect_done(fixture.b, b[0], 0);
	fake_complete(received.id, IBV_WC_SUCCESS, IBV_WC_RECV, 4);
	complete(b[1], IBV_WC_SUCCESS);
	complete(a[0], IBV_WC_SUCCESS);
	expect_done(fixture.a, a[0], 0);
	assert_int_equal(pier_channel_outstanding(fixture.a), 1);
	assert_int_equal(pier_channel_outstanding(fixture.b), 0);
	expect_done(fixture.b, b[1], 0);
	expect_done(fixture.b, received, 0);
	/* The count is that of the channel. */
	complete(a[1], IBV_WC_SUCCESS);
	expect_result(pier_channel_poll(fixture.b), 0);
	expect_done(fixture.a, a[1], 0);
	close_fixture(&fixture);
}

static void returns_each_channel_once(void **state)
{
	struct fixture fixture = open_fixture();
	struct pier_work a = post(fixture.a), b[2] = { post(fixture.b), post(fixture.b) };
	struct pier_channel *ready;

	(void)state;
	expect_news(fixture.cq, NULL, NULL);
	complete(b[0], IBV_WC_SUCCESS);
	complete(a, IBV_WC_SUCCESS);
	complete(b[1], IBV_WC_SUCCESS);
	expect_result(pier_cq_poll(fixture.cq, &ready, 0), -EINVAL);
	expect_result(pier_cq_poll(fixture.cq, &ready, 1), 1);
	assert_ptr_equal(ready, fixture.b);
	expect_news(fixture.cq, fixture.a, NULL);
	expect_news(fixture.cq, NULL, NULL);
	expect_done(fixture.a, a, 0);
	expect_done(fixture.b, b[1], 0);
	expect_done(fixture.b, b[0], 0);
	close_fixture(&fixture);
}

/* A channel that always has something waits behind one that has not been returned. */
static void busy_channel_hides_no_other(void **state)
{
	struct fixture fixture = open_fixture();
	struct pier_channel *ready;
	struct pier_work a;

	(void)state;
	complete(post(fixture.a), IBV_WC_SUCCESS);
	complete(post(fixture.b), IBV_WC_SUCCESS);
	expect_result(pier_cq_poll(fixture.cq, &ready, 1), 1);
	assert_ptr_equal(ready, fixture.a);
	a = post(fixture.a);
	complete(a, IBV_WC_SUCCESS);
	expect_result(pier_cq_poll(fixture.cq, &ready, 1), 1);
	assert_ptr_equal(ready, fixture.b);
	expect_news(fixture.cq, fixture.a, NULL);
	close_fixture(&fixture);
}

static bool is_readable(const struct fixture *fixture)
{
	struct pollfd fd = { .fd = pier_cq_fd(fixture->cq), .events = POLLIN };

	return poll(&fd, 1, 0) == 1;
}

/* No event announces what a call for another channel has collected. */
static void arming_reports_what_others_collected(void **state)
{
	struct fixture fixture = open_fixture();
	struct pier_work a = post(fixture.a), b = post(fixture.b);

	(void)state;
	complete(b, IBV_WC_SUCCESS);
	expect_pending(fixture.a, a);
	expect_result(pier_channel_arm(fixture.a), 0);
	expect_result(pier_channel_arm(fixture.b), 1);
	expect_result(pier_channel_arm(fixture.b), 0);
	expect_result(pier_cq_arm(fixture.cq), 1);
	expect_news(fixture.cq, fixture.b, NULL);
	expect_result(pier_cq_arm(fixture.cq), 0);
	assert_false(is_readable(&fixture));
	complete(a, IBV_WC_SUCCESS);
	assert_true(is_readable(&fixture));
	expect_result(pier_cq_arm(fixture.cq), 1);
	assert_false(is_readable(&fixture));
	expect_done(fixture.a, a, 0);
	expect_done(fixture.b, b, 0);
	close_fixture(&fixture);
}

/*
 * Arming the second channel takes the event that arming the first one asked for, with a
 * completion of the first.
 */
static void arming_one_after_another_loses_no_wake_up(void **state)
{
	struct fixture fixture = open_fixture();
	struct pier_work a = post(fixture.a);

	(void)state;
	expect_result(pier_channel_arm(fixture.a), 0);
	complete(a, IBV_WC_SUCCESS);
	assert_true(is_readable(&fixture));
	expect_result(pier_channel_arm(fixture.b), 1);
	assert_false(is_readable(&fixture));
	expect_result(pier_channel_arm(fixture.a), 1);
	expect_result(pier_channel_arm(fixture.a), 0);
	expect_done(fixture.a, a, 0);
	close_fixture(&fixture);
}

static void failing_channel_leaves_others_alone(void **state)
{
	struct fixture fixture = open_fixture();
	struct pier_work a[SENDS], b = post(fixture.b);

	(void)state;
	for (int i = 0; i < SENDS; i++)
		a[i] = post(fixture.a);
	complete(a[0], IBV_WC_RETRY_EXC_ERR);
	complete(a[1], IBV_WC_WR_FLUSH_ERR);
	complete(a[2], IBV_WC_WR_FLUSH_ERR);
	complete(b, IBV_WC_SUCCESS);
	expect_done(fixture.b, b, 0);
	assert_int_equal(pier_channel_error(fixture.b, NULL, 0), 0);
	assert_int_equal(pier_channel_error(fixture.a, NULL, 0), -EHOSTUNREACH);
	expect_done(fixture.a, a[1], -ECANCELED);
	expect_done(fixture.a, a[0], -EHOSTUNREACH);
	expect_result(pier_channel_post_send(fixture.a, &source, 1, &a[0]), -EPIPE);
	b = post(fixture.b);
	complete(b, IBV_WC_SUCCESS);
	expect_done(fixture.b, b, 0);
	close_fixture(&fixture);
}

/* Whether or not the provider removes them, completions leave with their channel. */
static void destroyed_channel_leaves_nothing(void **state)
{
	(void)state;
	for (int cleans = 0; cleans < 2; cleans++) {
		struct fixture fixture = open_fixture();
		struct pier_work b = post(fixture.b);

		fake.cleans_cq = cleans;
		complete(post(fixture.a), IBV_WC_SUCCESS);
		post(fixture.a);
		complete(b, IBV_WC_SUCCESS);
		complete(post(fixture.a), IBV_WC_SUCCESS);
		assert_int_equal(fake.queued, 3);
		expect_ok(pier_channel_destroy(fixture.a));
		assert_int_equal(fake.queued, 0);
		assert_int_equal(pier_cq_room(fixture.cq), DEPTH - RESERVED);
		expect_news(fixture.cq, fixture.b, NULL);
		expect_done(fixture.b, b, 0);
		fixture.a = make_channel(fixture.cq);
		close_fixture(&fixture);
	}
}

static void reset_leaves_others_alone(void **state)
{
	struct fixture fixture = open_fixture();
	struct pier_work a = post(fixture.a), b = post(fixture.b);

	(void)state;
	complete(b, IBV_WC_SUCCESS);
	expect_ok(pier_channel_reset(fixture.a));
	/* What was outstanding is reported; the neighbour's was collected meanwhile. */
	expect_news(fixture.cq, fixture.b, fixture.a);
	expect_done(fixture.a, a, -ECANCELED);
	expect_done(fixture.b, b, 0);
	expect_ok(pier_channel_connect(fixture.a, &peer));
	a = post(fixture.a);
	complete(a, IBV_WC_SUCCESS);
	expect_done(fixture.a, a, 0);
	close_fixture(&fixture);
}

/* The device withholds the completions of one channel for longer than pier waits. */
static void withheld_completions_are_made_up(void **state)
{
	struct fixture fixture = open_fixture();
	struct pier_work a = post(fixture.a), b = post(fixture.b);

	(void)state;
	fake.never_flushes = true;
	expect_ok(pier_channel_cancel(fixture.a));
	expect_news(fixture.cq, fixture.a, NULL);
	expect_done(fixture.a, a, -ECANCELED);
	expect_pending(fixture.b, b);
	complete(b, IBV_WC_SUCCESS);
	expect_done(fixture.b, b, 0);
	close_fixture(&fixture);
}

static void wait_sleeps_beside_other_completions(void **state)
{
	struct fixture fixture = open_fixture();
	struct pier_work a = post(fixture.a), b = post(fixture.b);

	(void)state;
	complete(b, IBV_WC_SUCCESS);
	/* With an event, when the wait is about to sleep. */
	fake.complete_at_poll = 1000;
	expect_ok(test_work_wait(fixture.a, a, 30000, NULL));
	assert_true(fake.notifies > 0);
	assert_true(fake.polls < 1000);
	expect_done(fixture.b, b, 0);
	close_fixture(&fixture);
}

/* A wait on many channels makes no system call for each. */
static void wait_arms_the_queue_once(void **state)
{
	struct fixture fixture = open_fixture();
	struct pier_wait_pass pass = { .step = PIER_WAIT_STEP_ARM };
	struct pollfd fds[2];

	(void)state;
	expect_ok(pier_wait_pass_channel(&pass, fixture.a));
	expect_ok(pier_wait_pass_channel(&pass, fixture.b));
	assert_int_equal(fake.notifies, 1);
	pass = (struct pier_wait_pass){ .step = PIER_WAIT_STEP_SLEEP, .fds = fds };
	expect_ok(pier_wait_pass_channel(&pass, fixture.a));
	expect_ok(pier_wait_pass_channel(&pass, fixture.b));
	assert_int_equal(pass.fd_count, 1);
	assert_int_equal(fds[0].fd, pier_cq_fd(fixture.cq));
	close_fixture(&fixture);
}

static void depth_is_a_budget(void **state)
{
	struct fixture fixture = open_fixture();
	struct pier_channel_attr attr = attr_of(fixture.cq);
	struct pier_channel *channel = NULL, *more;

	(void)state;
	assert_int_equal(pier_cq_room(fixture.cq), DEPTH - 2 * RESERVED);
	attr.max_send_wr = DEPTH - 2 * RESERVED - RECVS;
	attr.keepalive_ms = 1;
	expect_result(pier_channel_create(&fake.pd, &attr, &channel), -ENOSPC);
	test_assert_sentence("has 8 of 16 entries left, and the channel needs 9");
	assert_null(channel);
	attr.keepalive_ms = 0;
	expect_ok(pier_channel_create(&fake.pd, &attr, &channel));
	assert_int_equal(pier_cq_room(fixture.cq), 0);
	attr.max_send_wr = 1;
	expect_result(pier_channel_create(&fake.pd, &attr, &more), -ENOSPC);
	expect_ok(pier_channel_destroy(channel));
	assert_int_equal(pier_cq_room(fixture.cq), DEPTH - 2 * RESERVED);
	close_fixture(&fixture);
}

static struct pier_srq *make_srq(uint32_t max_wr)
{
	struct pier_srq_attr attr;
	struct pier_srq *srq = NULL;

	pier_srq_attr_init(&attr);
	attr.max_wr = max_wr;
	expect_ok(pier_srq_create(&fake.pd, &attr, &srq));
	return srq;
}

/* Its receives complete on one queue, whichever channel gets the messages. */
static void shared_receives_count_once(void **state)
{
	struct fixture fixture = open_fixture();
	struct pier_channel_attr attr = attr_of(fixture.cq);
	struct pier_channel *channels[2], *refused;
	struct pier_srq *srq = make_srq(5), *other = make_srq(2);
	struct pier_result result;

	(void)state;
	attr.max_send_wr = 1;
	attr.srq = srq;
	for (int i = 0; i < 2; i++) {
		expect_ok(pier_channel_create(&fake.pd, &attr, &channels[i]));
		expect_ok(pier_channel_connect(channels[i], &peer));
		assert_int_equal(pier_cq_room(fixture.cq),
				 DEPTH - 2 * RESERVED - 5 - 1 - i);
	}
	attr.srq = other;
	expect_result(pier_channel_create(&fake.pd, &attr, &refused), -ENOSPC);
	expect_ok(pier_srq_post_recv(srq, &target, 1, &attr));
	fake.receiver = channels[1]->qp_num;
	fake_complete(fake.shared_ids[0], IBV_WC_SUCCESS, IBV_WC_RECV, 8);
	expect_result(pier_message_wait(channels[0], 0, &result), 0);
	expect_news(fixture.cq, channels[1], NULL);
	expect_result(pier_message_wait(channels[1], 0, &result), 1);
	assert_ptr_equal(result.context, &attr);
	expect_ok(pier_channel_destroy(channels[0]));
	assert_int_equal(pier_cq_room(fixture.cq), DEPTH - 2 * RESERVED - 5 - 1);
	expect_ok(pier_channel_destroy(channels[1]));
	assert_int_equal(pier_cq_room(fixture.cq), DEPTH - 2 * RESERVED);
	expect_ok(pier_srq_destroy(srq));
	expect_ok(pier_srq_destroy(other));
	close_fixture(&fixture);
}

/* A message that nobody took returns to its queue. */
static void destroyed_channel_returns_its_receives(void **state)
{
	struct fixture fixture = open_fixture();
	struct pier_channel_attr attr = attr_of(fixture.cq);
	struct pier_srq *srq = make_srq(2);
	struct pier_channel *channel;

	(void)state;
	attr.srq = srq;
	expect_ok(pier_channel_create(&fake.pd, &attr, &channel));
	expect_ok(pier_channel_connect(channel, &peer));
	expect_ok(pier_srq_post_recv(srq, &target, 1, NULL));
	fake.receiver = channel->qp_num;
	fake_complete(fake.shared_ids[0], IBV_WC_SUCCESS, IBV_WC_RECV, 8);
	/* Collected by a call for another channel. */
	expect_result(pier_channel_poll(fixture.a), 0);
	assert_int_equal(fake.shared, 0);
	expect_ok(pier_channel_destroy(channel));
	assert_int_equal(fake.shared, 1);
	expect_news(fixture.cq, NULL, NULL);
	expect_ok(pier_srq_destroy(srq));
	close_fixture(&fixture);
}

static void finds_one_channel_among_many(void **state)
{
	enum {
		MANY = 40,
	};
	struct pier_channel *channels[MANY];
	struct test_census before;
	struct pier_cq *cq;

	(void)state;
	fake_reset();
	before = test_take_census();
	fake.device.limits.max_cqe = MANY * RESERVED;
	cq = make_cq(MANY * RESERVED);
	for (int i = 0; i < MANY; i++)
		channels[i] = make_channel(cq);
	for (int i = MANY; i-- > 0;) {
		struct pier_work work = post(channels[i]);

		complete(work, IBV_WC_SUCCESS);
		expect_news(cq, channels[i], NULL);
		expect_done(channels[i], work, 0);
	}
	/* From the middle, so that chains lose their first and last entries. */
	for (int i = 0; i < MANY; i++)
		expect_ok(pier_channel_destroy(channels[(i + MANY / 3) % MANY]));
	expect_ok(pier_cq_destroy(cq));
	test_assert_census(&before);
}

/* irdma does not leave ERR, so the channel gets another queue pair. */
static void follows_a_new_queue_pair(void **state)
{
	struct fixture fixture = open_fixture();
	uint32_t old = fixture.a->qp_num;
	struct pier_work a, b = post(fixture.b);

	(void)state;
	fake.stays_in_error = true;
	expect_ok(pier_channel_reset(fixture.a));
	assert_int_not_equal(fixture.a->qp_num, old);
	assert_null(pier_cq_find(fixture.cq, old));
	assert_int_equal(fixture.cq->channel_count, 2);
	assert_int_equal(pier_cq_room(fixture.cq), DEPTH - 2 * RESERVED);
	expect_ok(pier_channel_connect(fixture.a, &peer));
	expect_news(fixture.cq, fixture.a, NULL);
	a = post(fixture.a);
	complete(a, IBV_WC_SUCCESS);
	complete(b, IBV_WC_SUCCESS);
	expect_news(fixture.cq, fixture.a, fixture.b);
	expect_done(fixture.a, a, 0);
	expect_done(fixture.b, b, 0);
	close_fixture(&fixture);
}

/* Fewer than 2^32 requests apart, two channels could soon have the same wr_id. */
static void positions_are_far_apart(void **state)
{
	enum {
		MANY = 2000,
	};
	static uint64_t positions[MANY];
	struct pier_cq cq = { .position = 0x123456789 };

	(void)state;
	for (int i = 0; i < MANY; i++) {
		positions[i] = pier_cq_next_position(&cq);
		assert_true(positions[i] < UINT64_C(1) << 61);
		for (int j = 0; j < i; j++) {
			uint64_t apart = positions[i] - positions[j];

			assert_true(apart > UINT64_C(1) << 45);
			assert_true(-apart > UINT64_C(1) << 45);
		}
	}
}

static void vectors_are_taken_in_turn(void **state)
{
	struct pier_channel_attr attr = attr_of(NULL);
	struct pier_channel *channels[6];
	int used[3] = { 0 };

	(void)state;
	fake_reset();
	attr.cq_depth = 0;
	attr.comp_vector = PIER_UNSET;
	for (int i = 0; i < 6; i++) {
		struct pier_channel_attr chosen = attr;

		expect_ok(pier_channel_create(&fake.pd, &attr, &channels[i]));
		pier_channel_query(channels[i], &chosen, sizeof(chosen));
		assert_int_equal(chosen.comp_vector, fake.comp_vector);
		used[fake.comp_vector]++;
	}
	for (int i = 0; i < 3; i++)
		assert_int_equal(used[i], 2);
	for (int i = 0; i < 6; i++)
		expect_ok(pier_channel_destroy(channels[i]));
	/* 0 is the first vector. */
	attr.comp_vector = 0;
	expect_ok(pier_channel_create(&fake.pd, &attr, &channels[0]));
	assert_int_equal(fake.comp_vector, 0);
	expect_ok(pier_channel_destroy(channels[0]));
}

static void wrong_attributes_are_refused(void **state)
{
	struct pier_cq_attr attr;
	struct pier_cq *cq = NULL;

	(void)state;
	fake_reset();
	pier_cq_attr_init(&attr);
	attr.depth = 129;
	expect_result(pier_cq_create(&fake.pd, &attr, &cq), -EINVAL);
	test_assert_sentence("depth 129 is not in 1 to 128");
	attr.depth = 0;
	expect_result(pier_cq_create(&fake.pd, &attr, &cq), -EINVAL);
	attr.depth = 1;
	attr.comp_vector = 3;
	expect_result(pier_cq_create(&fake.pd, &attr, &cq), -EINVAL);
	test_assert_sentence("comp_vector 3 is not one of the device's 3");
	attr.comp_vector = 2;
	attr.size--;
	expect_result(pier_cq_create(&fake.pd, &attr, &cq), -EINVAL);
	assert_null(cq);
	attr.size++;
	expect_ok(pier_cq_create(&fake.pd, &attr, &cq));
	assert_int_equal(fake.comp_vector, 2);
	expect_ok(pier_cq_destroy(cq));
	expect_ok(pier_cq_destroy(NULL));
	assert_int_equal(fake.cqs + fake.channels, 0);
}

static void untouched_depth_is_clamped(void **state)
{
	struct pier_cq_attr attr;
	struct pier_cq *cq = NULL;

	(void)state;
	fake_reset();
	expect_ok(pier_cq_create(&fake.pd, NULL, &cq));
	assert_int_equal(pier_cq_room(cq), 128);
	expect_ok(pier_cq_destroy(cq));
	/* Also if the caller sets another member. */
	pier_cq_attr_init(&attr);
	attr.comp_vector = 2;
	expect_ok(pier_cq_create(&fake.pd, &attr, &cq));
	assert_int_equal(pier_cq_room(cq), 128);
	assert_int_equal(fake.comp_vector, 2);
	expect_ok(pier_cq_destroy(cq));
	expect_ok(pier_cq_destroy(NULL));
	assert_int_equal(fake.cqs + fake.channels, 0);
}

static void queue_of_another_device_is_refused(void **state)
{
	struct fixture fixture = open_fixture();
	struct pier_device other = fake.device;
	struct pier_pd pd = { .device = &other };
	struct pier_channel_attr attr = attr_of(fixture.cq);
	struct pier_channel *channel;

	(void)state;
	snprintf(other.name, sizeof(other.name), "fake1");
	expect_result(pier_channel_create(&pd, &attr, &channel), -EINVAL);
	test_assert_sentence("cq is of fake0, the channel of fake1");
	expect_result(pier_cq_destroy(fixture.cq), -EBUSY);
	test_assert_sentence("2 channels use it");
	close_fixture(&fixture);
}

static void undoes_a_creation_that_failed_half_way(void **state)
{
	struct pier_channel_attr attr;
	struct pier_channel *channel = NULL;
	struct pier_cq *cq = NULL;

	(void)state;
	for (int call = 1; call <= 2; call++) {
		fake_reset();
		fake.fail_call = call;
		expect_result(pier_cq_create(&fake.pd, NULL, &cq), -ENOSPC);
		assert_int_equal(fake.cqs + fake.channels, 0);
		assert_int_equal(atomic_load(&fake.pd.children), 0);
	}
	fake_reset();
	cq = make_cq(DEPTH);
	attr = attr_of(cq);
	for (int call = 1;; call++) {
		fake.calls = 0;
		fake.fail_call = call;
		if (pier_channel_create(&fake.pd, &attr, &channel) == 0)
			break;
		assert_null(channel);
		assert_int_equal(fake.qps, 0);
		assert_int_equal(pier_cq_room(cq), DEPTH);
		assert_int_equal(cq->channel_count, 0);
	}
	fake.fail_call = 0;
	expect_ok(pier_channel_destroy(channel));
	expect_ok(pier_cq_destroy(cq));
}

static void broken_queue_is_reported(void **state)
{
	struct fixture fixture = open_fixture();
	struct pier_channel *ready;

	(void)state;
	fake.poll_error = -1;
	expect_result(pier_cq_poll(fixture.cq, &ready, 1), -EIO);
	test_assert_sentence("ibv_poll_cq returned -1");
	expect_result(pier_cq_arm(fixture.cq), -EIO);
	expect_result(pier_channel_poll(fixture.a), -EIO);
	fake.poll_error = 0;
	close_fixture(&fixture);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(has_one_queue_and_one_fd),
		cmocka_unit_test(gives_each_channel_its_completions),
		cmocka_unit_test(returns_each_channel_once),
		cmocka_unit_test(busy_channel_hides_no_other),
		cmocka_unit_test(arming_reports_what_others_collected),
		cmocka_unit_test(arming_one_after_another_loses_no_wake_up),
		cmocka_unit_test(failing_channel_leaves_others_alone),
		cmocka_unit_test(destroyed_channel_leaves_nothing),
		cmocka_unit_test(reset_leaves_others_alone),
		cmocka_unit_test(withheld_completions_are_made_up),
		cmocka_unit_test(wait_sleeps_beside_other_completions),
		cmocka_unit_test(wait_arms_the_queue_once),
		cmocka_unit_test(depth_is_a_budget),
		cmocka_unit_test(shared_receives_count_once),
		cmocka_unit_test(destroyed_channel_returns_its_receives),
		cmocka_unit_test(finds_one_channel_among_many),
		cmocka_unit_test(follows_a_new_queue_pair),
		cmocka_unit_test(positions_are_far_apart),
		cmocka_unit_test(vectors_are_taken_in_turn),
		cmocka_unit_test(wrong_attributes_are_refused),
		cmocka_unit_test(untouched_depth_is_clamped),
		cmocka_unit_test(queue_of_another_device_is_refused),
		cmocka_unit_test(undoes_a_creation_that_failed_half_way),
		cmocka_unit_test(broken_queue_is_reported),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
