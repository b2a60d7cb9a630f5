/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>

#include "provider/soft/engine.h"
#include "provider/soft/soft.h"
#include "soft_fixture.h"

static const struct pier_provider *const soft = &pier_soft_provider;

static int is_readable(const struct soft_fixture *fixture)
{
	struct pollfd waited = { .fd = fixture->channel->fd, .events = POLLIN };

	return poll(&waited, 1, 0);
}

static void step_both(struct soft_fixture *a, struct soft_fixture *b)
{
	for (int i = 0; i < 200; i++)
		fixture_step(a, b);
}

static void wakes_for_solicited_events_only(void **state)
{
	struct fixture_options options = { .stepped = 1, .with_channel = 1 };
	struct ibv_cq *cq;
	struct soft_fixture a, b;
	void *context;

	(void)state;
	fixture_open_pair(&a, &b, &options);
	assert_int_equal(fcntl(b.channel->fd, F_SETFL, O_NONBLOCK), 0);
	assert_int_equal(ibv_req_notify_cq(b.recv_cq, 1), 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(fixture_post_recv(&b, i, 0, 8), 0);
	assert_int_equal(fixture_post(&a, IBV_WR_SEND, 1, 0, 8, NULL, 0, 0), 0);
	step_both(&a, &b);
	assert_int_equal(is_readable(&b), 0);
	assert_int_equal(soft->get_cq_event(b.channel, &cq, &context), -1);
	assert_int_equal(errno, EAGAIN);
	assert_int_equal(
		fixture_post(&a, IBV_WR_SEND, 2, 0, 8, NULL, 0, IBV_SEND_SOLICITED), 0);
	step_both(&a, &b);
	assert_int_equal(is_readable(&b), 1);
	/* Armed once: one event, however many completions. */
	assert_int_equal(
		fixture_post(&a, IBV_WR_SEND, 3, 0, 8, NULL, 0, IBV_SEND_SOLICITED), 0);
	step_both(&a, &b);
	assert_int_equal(soft->get_cq_event(b.channel, &cq, &context), 0);
	assert_ptr_equal(cq, b.recv_cq);
	assert_ptr_equal(context, &b);
	assert_int_equal(is_readable(&b), 0);
	soft->ack_cq_events(cq, 1);
	/* An error is always solicited. */
	assert_int_equal(ibv_req_notify_cq(b.recv_cq, 1), 0);
	assert_int_equal(fixture_to(&b, IBV_QPS_ERR), 0);
	assert_int_equal(is_readable(&b), 1);
	/* Destroying the CQ discards the pending event. */
	fixture_close(&a);
	fixture_close(&b);
}

static void send_between(struct soft_fixture *a, struct soft_fixture *b, uint64_t recv)
{
	assert_int_equal(fixture_post_recv(b, recv, 0, 8), 0);
	assert_int_equal(
		fixture_post(a, IBV_WR_SEND, 1, 0, 8, NULL, 0, IBV_SEND_SIGNALED), 0);
	fixture_expect(a, a->send_cq, NULL, 1, IBV_WC_SUCCESS);
}

/* Whether arming `b` announces a completion that is in its CQ. */
static void check_arming(int meets)
{
	struct fixture_options options = { .with_channel = 1, .meets = meets };
	struct soft_fixture a, b;
	struct ibv_cq *cq;
	void *context;

	fixture_open_pair(&a, &b, &options);
	send_between(&a, &b, 11);
	assert_int_equal(ibv_req_notify_cq(b.recv_cq, 1), 0);
	assert_int_equal(is_readable(&b), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(ibv_req_notify_cq(b.recv_cq, 0), 0);
	assert_int_equal(is_readable(&b), meets);
	/* Polled before the event was taken: it is withdrawn, and the CQ is still armed.
	 */
	fixture_expect(&b, b.recv_cq, NULL, 11, IBV_WC_SUCCESS);
	assert_int_equal(is_readable(&b), 0);
	send_between(&a, &b, 12);
	assert_int_equal(is_readable(&b), 1);
	assert_int_equal(soft->get_cq_event(b.channel, &cq, &context), 0);
	soft->ack_cq_events(cq, 1);
	assert_int_equal(is_readable(&b), 0);
	fixture_close(&a);
	fixture_close(&b);
}

static void arming_announces_waiting_completions_to_verbs_programs(void **state)
{
	(void)state;
	check_arming(0);
	check_arming(1);
}

struct consumer {
	struct soft_fixture *fixture;
	int total;
};

/* Sleep on the channel, and poll a CQ only after its event. */
static void *consume(void *argument)
{
	struct consumer *consumer = argument;
	struct soft_fixture *fixture = consumer->fixture;
	int taken = 0, count;
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *context;

	while (taken < consumer->total) {
		assert_int_equal(soft->get_cq_event(fixture->channel, &cq, &context), 0);
		soft->ack_cq_events(cq, 1);
		assert_int_equal(ibv_req_notify_cq(cq, 0), 0);
		while ((count = ibv_poll_cq(cq, 1, &wc)) > 0) {
			assert_int_equal(wc.status, IBV_WC_SUCCESS);
			assert_int_equal(wc.wr_id, taken % 16);
			taken++;
			assert_int_equal(fixture_post_recv(fixture, wc.wr_id, 0, 8), 0);
		}
		assert_int_equal(count, 0);
	}
	return NULL;
}

static void loses_no_wakeup(void **state)
{
	struct fixture_options options = { .with_channel = 1,
					   .rnr_retry = 7,
					   .min_rnr_timer = 1 };
	struct consumer consumer;
	struct soft_fixture a, b;
	pthread_t thread;

	(void)state;
	fixture_open_pair(&a, &b, &options);
	for (int i = 0; i < 16; i++)
		assert_int_equal(fixture_post_recv(&b, i, 0, 8), 0);
	assert_int_equal(ibv_req_notify_cq(b.recv_cq, 0), 0);
	consumer.fixture = &b;
	consumer.total = 4000;
	assert_int_equal(pthread_create(&thread, NULL, consume, &consumer), 0);
	for (int i = 0; i < consumer.total; i++) {
		assert_int_equal(fixture_post(&a, IBV_WR_SEND, i, 0, 8, NULL, 0,
					      IBV_SEND_SIGNALED),
				 0);
		fixture_expect(&a, a.send_cq, NULL, i, IBV_WC_SUCCESS);
	}
	pthread_join(thread, NULL);
	fixture_close(&a);
	fixture_close(&b);
}

/*
 * Posted while the engine is locked: the thread that unlocks it must handle the doorbell.
 * The queue pair is in ERR, so no event of a link can do so instead, and no thread polls.
 */
static void handles_doorbells_left_at_the_lock(void **state)
{
	struct fixture_options options = { .with_channel = 1 };
	struct pollfd waited = { .events = POLLIN };
	struct ibv_cq *cq;
	struct soft_fixture a, b;
	void *context;

	(void)state;
	fixture_open_pair(&a, &b, &options);
	waited.fd = a.channel->fd;
	assert_int_equal(fixture_to(&a, IBV_QPS_ERR), 0);
	for (int i = 0; i < 20; i++) {
		assert_int_equal(ibv_req_notify_cq(a.recv_cq, 0), 0);
		pier_soft_lock(&soft_context(a.context)->engine);
		assert_int_equal(fixture_post_recv(&a, i, 0, 8), 0);
		pier_soft_unlock(&soft_context(a.context)->engine);
		assert_int_equal(poll(&waited, 1, FIXTURE_DEADLINE_MS), 1);
		assert_int_equal(soft->get_cq_event(a.channel, &cq, &context), 0);
		soft->ack_cq_events(cq, 1);
		fixture_expect(&a, a.recv_cq, NULL, i, IBV_WC_WR_FLUSH_ERR);
	}
	fixture_close(&a);
	fixture_close(&b);
}

/* Two threads post on one queue pair while a third registers memory. */
struct poster {
	struct soft_fixture *fixture;
	const struct fixture_endpoint *peer;
	uint64_t id;
};

enum {
	POSTS = 1000
};

static void *post_many(void *argument)
{
	struct poster *poster = argument;

	for (int i = 0; i < POSTS; i++) {
		while (fixture_post(poster->fixture, IBV_WR_RDMA_WRITE, poster->id,
				    poster->id * 4096, 4096, poster->peer,
				    poster->id * 4096, IBV_SEND_SIGNALED) != 0)
			sched_yield();
	}
	return NULL;
}

static void *register_many(void *argument)
{
	struct soft_fixture *fixture = argument;

	for (int i = 0; i < 200; i++) {
		struct ibv_mr *mr = soft->reg_mr(fixture->pd, fixture->memory, 8192,
						 (uintptr_t)fixture->memory,
						 IBV_ACCESS_LOCAL_WRITE);

		assert_non_null(mr);
		assert_int_equal(soft->dereg_mr(mr), 0);
	}
	return NULL;
}

static void threads_can_post_and_register(void **state)
{
	struct fixture_endpoint to_b;
	struct poster posters[2];
	pthread_t threads[3];
	struct soft_fixture a, b;

	(void)state;
	fixture_open_pair(&a, &b, NULL);
	fixture_describe(&b, &to_b);
	for (int i = 0; i < 2; i++) {
		posters[i] = (struct poster){ .fixture = &a, .peer = &to_b, .id = i };
		assert_int_equal(
			pthread_create(&threads[i], NULL, post_many, &posters[i]), 0);
	}
	assert_int_equal(pthread_create(&threads[2], NULL, register_many, &a), 0);
	for (int i = 0; i < 2 * POSTS; i++)
		assert_int_equal(fixture_wait(&a, a.send_cq, NULL).status,
				 IBV_WC_SUCCESS);
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	fixture_close(&a);
	fixture_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(wakes_for_solicited_events_only),
		cmocka_unit_test(arming_announces_waiting_completions_to_verbs_programs),
		cmocka_unit_test(loses_no_wakeup),
		cmocka_unit_test(handles_doorbells_left_at_the_lock),
		cmocka_unit_test(threads_can_post_and_register),
	};

	return cmocka_run_group_tests(tests, fixture_make_folder, fixture_remove_folder);
}
