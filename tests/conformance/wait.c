/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "cases.h"
#include "world.h"

/* Handles, sleeping, and timeouts. */

static void wait_sleeps_until_completion(void **state)
{
	struct world *world = world_connected(state);
	struct pollfd fd = { .fd = pier_channel_fd(world->b.channel), .events = POLLIN };
	struct pier_gather source = gather_at(&world->a.area, 0, 30);
	struct pier_scatter target = scatter_at(&world->b.area, 0, 30);
	struct pier_result result;

	for (int round = 0; round < 20; round++) {
		struct pier_work receive;

		expect_ok(pier_channel_post_recv(world->b.channel, &target, 1, &receive));
		expect_ok(pier_channel_arm(world->b.channel));
		assert_int_equal(poll(&fd, 1, 0), 0);
		expect_ok(pier_channel_send(world->a.channel, &source, 1, PATIENT));
		assert_int_equal(poll(&fd, 1, PATIENT), 1);
		expect_result(pier_work_poll(world->b.channel, receive, &result), 1);
		expect_ok(pier_channel_arm(world->b.channel));
		assert_int_equal(poll(&fd, 1, 0), 0);
	}
	image_copy(&world->b.area, 0, &world->a.area, 0, 30);
	world_expect(world);
}

/* Arming reports completions from before it by its result. The fd does not. */
static void arming_loses_no_wake_up(void **state)
{
	struct world *world = world_connected(state);
	struct pier_work work;
	int collected = 0;

	for (int round = 0; round < 20; round++) {
		struct pollfd fd = { .fd = pier_channel_fd(world->a.channel),
				     .events = POLLIN };

		expect_ok(pier_channel_post_write(world->a.channel, NULL, 0,
						  &(struct pier_remote){ 0 }, &work));
		collected = pier_channel_arm(world->a.channel);
		assert_true(collected >= 0);
		if (collected == 0)
			assert_int_equal(poll(&fd, 1, PATIENT), 1);
		expect_end(world->a.channel, work, 0);
	}
}

static void handles_are_used_once(void **state)
{
	struct world *world = world_connected(state);
	struct pier_work work, receive, none = { 0 };
	struct pier_result result;

	expect_ok(pier_channel_post_recv(world->b.channel, NULL, 0, &receive));
	expect_result(pier_work_poll(world->b.channel, receive, &result), 0);
	expect_ok(pier_channel_post_send(world->a.channel, NULL, 0, &work));
	expect_result(pier_work_poll(world->b.channel, work, &result), -ESTALE);
	expect_end(world->a.channel, work, 0);
	expect_result(pier_work_poll(world->a.channel, work, &result), -ESTALE);
	expect_result(test_work_finish(world->a.channel, work, PATIENT, &result),
		      -ESTALE);
	expect_result(test_work_finish(world->a.channel, none, PATIENT, &result),
		      -ESTALE);
	expect_end(world->b.channel, receive, 0);
	expect_result(pier_work_poll(world->b.channel, receive, &result), -ESTALE);
}

static void full_queue_is_reported(void **state)
{
	struct pier_channel_attr attr = test_attr();
	struct world *world;
	struct pier_work work[4];

	attr.max_recv_wr = 4;
	world = world_connected_with(state, &attr);
	for (int i = 0; i < 4; i++)
		expect_ok(pier_channel_post_recv(world->b.channel, NULL, 0, &work[i]));
	expect_result(pier_channel_post_recv(world->b.channel, NULL, 0, NULL), -EAGAIN);
	expect_ok(pier_channel_send(world->a.channel, NULL, 0, PATIENT));
	expect_end(world->b.channel, work[0], 0);
	expect_ok(pier_channel_post_recv(world->b.channel, NULL, 0, &work[0]));
	expect_result(pier_channel_post_recv(world->b.channel, NULL, 0, NULL), -EAGAIN);
}

/* Without a handle: sleeps until anything completes. */
static void wait_for_any(struct pier_channel *channel)
{
	struct pollfd fd = { .fd = pier_channel_fd(channel), .events = POLLIN };
	int collected = pier_channel_arm(channel);

	assert_true(collected >= 0);
	if (collected == 0)
		assert_int_equal(poll(&fd, 1, PATIENT), 1);
}

/* A queue must not fill up with requests that have no handle. */
static void requests_without_handles_free_their_slots(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather source = gather_at(&world->a.area, 3, 9);
	struct pier_remote target = remote_at(&world->b.area, 5, 9);
	int posted = 0;

	while (posted < 500) {
		int error = pier_channel_post_write(world->a.channel, &source, 1, &target,
						    NULL);

		if (error == -EAGAIN) {
			wait_for_any(world->a.channel);
		} else {
			expect_ok(error);
			posted++;
		}
	}
	while (pier_channel_outstanding(world->a.channel) > 0)
		wait_for_any(world->a.channel);
	image_copy(&world->b.area, 5, &world->a.area, 3, 9);
	world_expect(world);
}

static void wait_that_times_out_leaves_the_request(void **state)
{
	struct world *world = world_connected(state);
	struct pier_scatter target = scatter_at(&world->b.area, 0, 5000);
	struct pier_gather source = gather_at(&world->a.area, 0, 5000);
	struct pier_result result;
	struct pier_work work;

	expect_ok(pier_channel_post_recv(world->b.channel, &target, 1, &work));
	expect_result(pier_work_wait(world->b.channel, work, 0, &result), 0);
	expect_result(pier_work_wait(world->b.channel, work, BRIEF, &result), -ETIMEDOUT);
	assert_int_equal(pier_channel_outstanding(world->b.channel), 1);
	image_copy(&world->b.area, 0, &world->a.area, 0, 5000);
	expect_ok(pier_channel_send(world->a.channel, &source, 1, PATIENT));
	expect_result(pier_work_wait(world->b.channel, work, PATIENT, &result), 1);
	assert_int_equal(result.error, 0);
	assert_int_equal(result.byte_length, 5000);
	world_expect(world);
}

static void timeout_releases_memory(void **state)
{
	struct world *world = world_connected(state);
	struct pier_scatter target = scatter_at(&world->b.area, 0, 5000);
	struct pier_gather source = gather_at(&world->a.area, 0, 5000);
	struct pier_result result = { 0 };
	struct pier_work other;

	expect_ok(pier_channel_post_recv(world->b.channel, &target, 1, &other));
	expect_ok(pier_channel_post_recv(world->b.channel, &target, 1, NULL));
	expect_result(pier_channel_recv(world->b.channel, &target, 1, BRIEF, &result),
		      -ETIMEDOUT);
	assert_int_equal(result.error, -ECANCELED);
	assert_int_equal(pier_channel_outstanding(world->b.channel), 0);
	expect_end(world->b.channel, other, -ECANCELED);
	expect_result(pier_channel_post_recv(world->b.channel, &target, 1, NULL), -EPIPE);
	/* The peer's message finds no receive, and the memory is unchanged. */
	assert_true(pier_channel_send(world->a.channel, &source, 1, PATIENT) < 0);
	world_expect(world);
}

/* By default an RNR NAK is never an error, so that the sentence is the only sign of it.
 */
static struct world *world_without_receives(void **state)
{
	struct pier_channel_attr attr = test_attr();

	attr.rnr_retry_count = 7;
	return world_connected_with(state, &attr);
}

static void timeout_names_a_missing_receive(void **state)
{
	struct world *world = world_without_receives(state);
	struct pier_gather source = gather_at(&world->a.area, 0, 100);
	struct pier_remote target = remote_at(&world->b.area, 0, 100);

	expect_ok(pier_channel_post_send(world->a.channel, &source, 1, NULL));
	/* It waits for the send before it. */
	expect_result(pier_channel_write(world->a.channel, &source, 1, &target, BRIEF),
		      -ETIMEDOUT);
	test_assert_sentence("write did not complete");
	test_assert_sentence("may have posted no receive");
}

static void timeout_names_a_missing_receive_of_immediate_data(void **state)
{
	struct world *world = world_without_receives(state);
	struct pier_gather source = gather_at(&world->a.area, 0, 100);
	struct pier_remote target = remote_at(&world->b.area, 0, 100);

	expect_result(
		test_channel_write_imm(world->a.channel, &source, 1, &target, 7, BRIEF),
		-ETIMEDOUT);
	test_assert_sentence("may have posted no receive, if the write has immediate");
}

/* A timeout of 0 polls once, and fails with -ETIMEDOUT if nothing has completed. */
static void zero_timeout_polls_once(void **state)
{
	struct world *world = world_connected(state);

	expect_result(pier_channel_recv(world->b.channel, NULL, 0, 0, NULL), -ETIMEDOUT);
	expect_result(pier_channel_recv(world->b.channel, NULL, 0, 0, NULL), -EPIPE);
}

/* A thread that acts only when epoll(7) reports the fd. It must not assert. */
struct loop {
	struct pier_channel *channel;
	uint32_t events; /* EPOLLIN, with EPOLLET or without */
	int receives;	 /* number of receives, posted one after the other */
	int done, error;
};

/* Takes all completed receives and posts the next one for each. */
static int serve(struct loop *loop, struct pier_work *work)
{
	int done = 0;

	while (loop->done < loop->receives && !loop->error) {
		done = pier_work_poll(loop->channel, *work, NULL);
		if (done <= 0)
			return done;
		if (++loop->done < loop->receives)
			loop->error = pier_channel_post_recv(loop->channel, NULL, 0,
							     work);
	}
	return loop->error;
}

static int wait_in_epoll(struct loop *loop, int epoll, struct pier_work *work)
{
	struct epoll_event event;
	int count = pier_channel_arm(loop->channel);

	if (count < 0)
		return count;
	/* Polling although arming reported nothing would hide a lost wake-up. */
	if (count > 0)
		return serve(loop, work);
	count = epoll_wait(epoll, &event, 1, PATIENT);
	if (count < 0)
		return errno == EINTR ? 0 : -errno;
	return count == 1 ? 0 : -ETIMEDOUT;
}

static void *run_loop(void *argument)
{
	struct loop *loop = argument;
	struct epoll_event event = { .events = loop->events };
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	struct pier_work work;

	loop->error = pier_channel_post_recv(loop->channel, NULL, 0, &work);
	if (epoll < 0 ||
	    epoll_ctl(epoll, EPOLL_CTL_ADD, pier_channel_fd(loop->channel), &event) < 0)
		loop->error = -errno;
	while (loop->done < loop->receives && !loop->error)
		loop->error = wait_in_epoll(loop, epoll, &work);
	close(epoll);
	return NULL;
}

/* The peer sends at random moments, before and after the thread sleeps. */
static void wake_in_epoll(void **state, uint32_t events)
{
	struct pier_channel_attr attr = test_attr();
	struct loop loop = { .events = events, .receives = 300 };
	struct world *world;
	pthread_t thread;

	/* The next receive is posted some time after the previous message. */
	attr.rnr_retry_count = 7;
	attr.min_rnr_timer = 1;
	world = world_connected_with(state, &attr);
	loop.channel = world->b.channel;
	assert_int_equal(pthread_create(&thread, NULL, run_loop, &loop), 0);
	for (int i = 0; i < loop.receives; i++)
		expect_ok(pier_channel_send(world->a.channel, NULL, 0, PATIENT));
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(loop.error, 0);
	assert_int_equal(loop.done, loop.receives);
}

static void epoll_level_triggered_wakes(void **state)
{
	wake_in_epoll(state, EPOLLIN);
}

static void epoll_edge_triggered_wakes(void **state)
{
	wake_in_epoll(state, EPOLLIN | EPOLLET);
}

static void every_waiting_mode_completes(void **state)
{
	static const enum pier_waiting ways[] = { PIER_WAIT_POLL, PIER_WAIT_EVENT,
						  PIER_WAIT_ADAPTIVE };
	struct world *world = world_connected(state);
	struct pier_gather source = gather_at(&world->a.area, 0, 5000);
	struct pier_remote target = remote_at(&world->b.area, 0, 5000);

	for (size_t i = 0; i < 3; i++) {
		expect_ok(pier_channel_set_waiting(world->a.channel, ways[i], 20));
		for (int round = 0; round < 20; round++)
			expect_ok(pier_channel_write(world->a.channel, &source, 1,
						     &target, PATIENT));
	}
	image_copy(&world->b.area, 0, &world->a.area, 0, 5000);
	world_expect(world);
}

/* Of a receive and of the send that it gets. */
static void result_has_the_context_of_its_request(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather source = gather_at(&world->a.area, 0, 500);
	struct pier_scatter target = scatter_at(&world->b.area, 0, 500);
	struct pier_request receive = { .opcode = PIER_OP_RECV,
					.scatter = &target,
					.num_sge = 1,
					.context = &target };
	struct pier_request send = { .opcode = PIER_OP_SEND,
				     .gather = &source,
				     .num_sge = 1,
				     .context = &source };
	struct pier_result result;
	struct pier_work work;

	expect_ok(pier_channel_post_request(world->b.channel, &receive, &work));
	expect_ok(pier_channel_run_request(world->a.channel, &send, PATIENT, &result));
	assert_ptr_equal(result.context, &source);
	expect_result(pier_work_wait(world->b.channel, work, PATIENT, &result), 1);
	assert_ptr_equal(result.context, &target);
	assert_int_equal(result.byte_length, 500);
	image_copy(&world->b.area, 0, &world->a.area, 0, 500);
	world_expect(world);
}

/* Returns immediately, and afterwards nothing is in flight in either direction. */
static void cancel_ends_all_requests(void **state)
{
	struct world *world = world_connected(state);
	struct pier_scatter target = scatter_at(&world->a.area, 0, 5000);
	struct pier_gather source = gather_at(&world->b.area, 0, 5000);
	struct pier_remote remote = remote_at(&world->a.area, 0, 5000);
	struct pier_work receives[2];

	for (int i = 0; i < 2; i++)
		expect_ok(pier_channel_post_recv(world->a.channel, &target, 1,
						 &receives[i]));
	expect_ok(pier_channel_cancel(world->a.channel));
	assert_int_equal(pier_channel_outstanding(world->a.channel), 0);
	for (int i = 0; i < 2; i++)
		expect_end(world->a.channel, receives[i], -ECANCELED);
	expect_result(pier_channel_post_recv(world->a.channel, &target, 1, NULL), -EPIPE);
	test_assert_sentence("was cancelled");
	expect_ok(pier_channel_cancel(world->a.channel));
	assert_true(pier_channel_write(world->b.channel, &source, 1, &remote, PATIENT) <
		    0);
	world_expect(world);
}

int run_wait_cases(void)
{
	const struct CMUnitTest cases[] = {
		world_case(wait_sleeps_until_completion),
		world_case(arming_loses_no_wake_up),
		world_case(handles_are_used_once),
		world_case(full_queue_is_reported),
		world_case(requests_without_handles_free_their_slots),
		world_case(wait_that_times_out_leaves_the_request),
		world_case(timeout_releases_memory),
		world_case(timeout_names_a_missing_receive),
		world_case(timeout_names_a_missing_receive_of_immediate_data),
		world_case(zero_timeout_polls_once),
		world_case(epoll_level_triggered_wakes),
		world_case(epoll_edge_triggered_wakes),
		world_case(every_waiting_mode_completes),
		world_case(result_has_the_context_of_its_request),
		world_case(cancel_ends_all_requests),
	};

	return cmocka_run_group_tests_name("waiting", cases, NULL, NULL);
}
