/* SPDX-License-Identifier: BSD-3-Clause */
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <pier/channel.h>

#include "channel/setup/attr.h"
#include "provider/soft/engine.h"
#include "provider/soft/limits.h"
#include "provider/soft/link/fifo.h"
#include "provider/soft/queues/responder.h"
#include "provider/soft/queues/qp.h"
#include "provider/soft/soft.h"
#include "soft_fixture.h"

/* Data that arrived before a peer hung up still counts, and the hangup is detected. */

static const struct fixture_options stepped = { .stepped = 1 };

static struct soft_qp *soft_qp(const struct soft_fixture *fixture)
{
	return (struct soft_qp *)fixture->qp;
}

static void step_often(struct soft_fixture *fixture)
{
	for (int i = 0; i < 20; i++)
		fixture_step(fixture, NULL);
}

static void destroy_qp(struct soft_fixture *fixture)
{
	assert_int_equal(pier_soft_provider.destroy_qp(fixture->qp), 0);
	fixture->qp = NULL;
}

/* As if the engine had not run yet. */
static void miss_events(struct soft_fixture *fixture)
{
	struct epoll_event events[8];

	while (epoll_wait(soft_context(fixture->context)->engine.epoll_fd, events, 8, 0) >
	       0)
		;
}

/* A failing send finds the answers to earlier requests on the stream. */
static void finds_answers_before_a_hangup(void **state)
{
	const struct fixture_options impatient = { .stepped = 1,
						   .timeout = FIXTURE_IMPATIENT };
	struct soft_fixture a, b;

	(void)state;
	fixture_open_pair(&a, &b, &impatient);
	assert_int_equal(fixture_post_recv(&b, 11, 0, 8), 0);
	assert_int_equal(
		fixture_post(&a, IBV_WR_SEND, 1, 0, 8, NULL, 0, IBV_SEND_SIGNALED), 0);
	step_often(&a);
	step_often(&b);
	fixture_expect(&b, b.recv_cq, NULL, 11, IBV_WC_SUCCESS);
	destroy_qp(&b);
	miss_events(&a);
	assert_int_equal(
		fixture_post(&a, IBV_WR_SEND, 2, 0, 8, NULL, 0, IBV_SEND_SIGNALED), 0);
	fixture_expect(&a, a.send_cq, NULL, 1, IBV_WC_SUCCESS);
	fixture_expect(&a, a.send_cq, NULL, 2, IBV_WC_RETRY_EXC_ERR);
	fixture_close(&a);
	fixture_close(&b);
}

/* As if the stream had no room for answers. */
static void receive_only(struct soft_fixture *fixture)
{
	struct soft_link *link = &soft_qp(fixture)->link;
	uint64_t put = link->fifo ? link->fifo->put : 0;

	if (link->fifo)
		link->fifo->put = atomic_load(&link->fifo->out->tail) + SOFT_FIFO_SIZE;
	miss_events(fixture);
	link->readable = true;
	link->writable = false;
	pier_soft_lock(&soft_context(fixture->context)->engine);
	pier_soft_activate(&soft_qp(fixture)->end.work);
	pier_soft_unlock(&soft_context(fixture->context)->engine);
	step_often(fixture);
	if (link->fifo)
		link->fifo->put = put;
}

/* The last ACK does not overtake a READ's answer that waits for room. */
static void sends_pending_answers_before_the_last_ack(void **state)
{
	struct fixture_endpoint to_b;
	struct soft_fixture a, b;

	(void)state;
	fixture_open_pair(&a, &b, &stepped);
	fixture_describe(&b, &to_b);
	memset(b.memory, 'g', 100);
	assert_int_equal(fixture_post(&a, IBV_WR_RDMA_READ, 1, 0, 100, &to_b, 0,
				      IBV_SEND_SIGNALED),
			 0);
	assert_int_equal(fixture_post(&a, IBV_WR_RDMA_WRITE, 2, 200, 8, &to_b, 200,
				      IBV_SEND_SIGNALED),
			 0);
	step_often(&a);
	receive_only(&b);
	assert_int_equal(soft_qp(&b)->responder.read_count, 1);
	/* As after EAGAIN. */
	pier_soft_lock(&soft_context(b.context)->engine);
	assert_true(pier_soft_queue_read_response(soft_qp(&b)));
	pier_soft_unlock(&soft_context(b.context)->engine);
	destroy_qp(&b);
	fixture_expect(&a, a.send_cq, NULL, 1, IBV_WC_SUCCESS);
	fixture_expect(&a, a.send_cq, NULL, 2, IBV_WC_SUCCESS);
	assert_int_equal(a.memory[99], 'g');
	assert_int_equal(a.memory[100], 0);
	fixture_close(&a);
	fixture_close(&b);
}

/* A child forked in the meantime has copies of all fds. */
static void detects_a_hangup_despite_a_child(void **state)
{
	struct soft_fixture a, b;
	int status;
	pid_t child;

	(void)state;
	fixture_open_pair(&a, &b, NULL);
	assert_int_equal(fixture_post_recv(&b, 11, 0, 8), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	destroy_qp(&a);
	fixture_expect(&b, b.recv_cq, NULL, 11, IBV_WC_WR_FLUSH_ERR);
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, &status, 0), child);
	fixture_close(&a);
	fixture_close(&b);
}

/*
 * As if everything had happened that much earlier, and the process had been stopped
 * since.
 */
static void sleep_through(struct soft_fixture *fixture, uint64_t seconds)
{
	struct soft_engine *engine = &soft_context(fixture->context)->engine;
	uint64_t slept = seconds * 1000000000;

	assert_int_not_equal(engine->deadline, SOFT_NEVER);
	engine->deadline -= slept;
	engine->now -= slept;
	soft_qp(fixture)->last_progress -= slept;
}

/*
 * A process that was stopped itself (Ctrl-Z, a debugger) cannot blame the peer for
 * silence.
 */
static void does_not_blame_the_peer_after_a_stop(void **state)
{
	struct fixture_endpoint to_b;
	struct soft_fixture a, b;

	(void)state;
	fixture_open_pair(&a, &b, &stepped);
	fixture_describe(&b, &to_b);
	assert_int_equal(
		fixture_post(&a, IBV_WR_RDMA_WRITE, 1, 0, 8, &to_b, 0, IBV_SEND_SIGNALED),
		0);
	step_often(&a);
	sleep_through(&a, 60);
	/* The peer was stopped as well, and continues after us. */
	step_often(&a);
	fixture_expect_none(&a, a.send_cq);
	step_often(&b);
	fixture_expect(&a, a.send_cq, &b, 1, IBV_WC_SUCCESS);
	fixture_close(&a);
	fixture_close(&b);
}

/* As if the request had been sent that much earlier, to a peer that is silent since. */
static void stay_silent(struct soft_fixture *fixture, uint64_t seconds)
{
	struct soft_engine *engine = &soft_context(fixture->context)->engine;
	uint64_t silence = seconds * 1000000000;

	step_often(fixture);
	assert_int_not_equal(engine->deadline, SOFT_NEVER);
	engine->deadline -= silence;
	soft_qp(fixture)->last_progress -= silence;
	step_often(fixture);
}

/* A port that is down for 5 s does not break a channel with the default attributes. */
static void defaults_outlast_five_seconds_of_silence(void **state)
{
	struct fixture_endpoint to_b;
	struct pier_channel_attr usual;
	struct soft_fixture a, b;

	(void)state;
	assert_int_equal(
		pier_read_channel_attr(NULL, &(struct ibv_device_attr){ 0 }, &usual), 0);
	fixture_open_pair(&a, &b, &stepped);
	fixture_describe(&b, &to_b);
	soft_qp(&a)->attr.timeout = (uint8_t)usual.timeout;
	soft_qp(&a)->attr.retry_cnt = (uint8_t)usual.retry_count;
	for (uint64_t id = 1; id <= 2; id++) {
		assert_int_equal(fixture_post(&a, IBV_WR_RDMA_WRITE, id, 0, 8, &to_b, 0,
					      IBV_SEND_SIGNALED),
				 0);
		stay_silent(&a, 5);
		fixture_expect_none(&a, a.send_cq);
		if (id == 1)
			fixture_expect(&a, a.send_cq, &b, id, IBV_WC_SUCCESS);
	}
	stay_silent(&a, 4);
	fixture_expect(&a, a.send_cq, NULL, 2, IBV_WC_RETRY_EXC_ERR);
	fixture_close(&a);
	fixture_close(&b);
}

/* The limit is 2 s, not the 9 s of the fixture: the peer may wait for our answers. */
static void times_out_on_a_broken_stream(void **state)
{
	struct fixture_endpoint to_b;
	struct soft_fixture a, b;
	uint64_t begun;

	(void)state;
	fixture_open_pair(&a, &b, &stepped);
	fixture_describe(&b, &to_b);
	step_often(&a);
	soft_qp(&a)->link.tx_broken = true;
	begun = fixture_milliseconds();
	assert_int_equal(fixture_post(&a, IBV_WR_RDMA_WRITE, 1, 0, 8, &to_b, 0, 0), 0);
	fixture_expect(&a, a.send_cq, &b, 1, IBV_WC_RETRY_EXC_ERR);
	assert_true(fixture_milliseconds() - begun < 8000);
	fixture_close(&a);
	fixture_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(times_out_on_a_broken_stream),
		cmocka_unit_test(finds_answers_before_a_hangup),
		cmocka_unit_test(sends_pending_answers_before_the_last_ack),
		cmocka_unit_test(detects_a_hangup_despite_a_child),
		cmocka_unit_test(does_not_blame_the_peer_after_a_stop),
		cmocka_unit_test(defaults_outlast_five_seconds_of_silence),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
