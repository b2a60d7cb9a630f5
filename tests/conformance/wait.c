/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <poll.h>

#include "cases.h"
#include "world.h"

/* Handles, sleeping, and what happens when the time is up. */

static void sleeps_until_something_completes(void **state)
{
	struct world *world = world_connected(state);
	struct pollfd fd = { .fd = pier_channel_fd(world->b.channel), .events = POLLIN };
	struct pier_gather source = gather_at(&world->a.area, 0, 30);
	struct pier_scatter target = scatter_at(&world->b.area, 0, 30);
	struct pier_result result;

	for (int round = 0; round < 20; round++) {
		struct pier_work receive;

		expect_ok(pier_post_recv(world->b.channel, &target, 1, &receive));
		expect_ok(pier_arm_channel(world->b.channel));
		assert_int_equal(poll(&fd, 1, 0), 0);
		expect_ok(pier_send(world->a.channel, &source, 1, PATIENT));
		assert_int_equal(poll(&fd, 1, PATIENT), 1);
		expect_result(pier_poll_work(world->b.channel, receive, &result), 1);
		expect_ok(pier_arm_channel(world->b.channel));
		assert_int_equal(poll(&fd, 1, 0), 0);
	}
	image_copy(&world->b.area, 0, &world->a.area, 0, 30);
	world_expect(world);
}

/* What completed before the arming is told by its result, not by the fd. */
static void loses_no_wake_up(void **state)
{
	struct world *world = world_connected(state);
	struct pier_work work;
	int collected = 0;

	for (int round = 0; round < 20; round++) {
		struct pollfd fd = { .fd = pier_channel_fd(world->a.channel),
				     .events = POLLIN };

		expect_ok(pier_post_write(world->a.channel, NULL, 0,
					  &(struct pier_remote){ 0 }, &work));
		collected = pier_arm_channel(world->a.channel);
		assert_true(collected >= 0);
		if (collected == 0)
			assert_int_equal(poll(&fd, 1, PATIENT), 1);
		expect_end(world->a.channel, work, 0);
	}
}

static void knows_its_handles(void **state)
{
	struct world *world = world_connected(state);
	struct pier_work work, receive, none = { 0 };
	struct pier_result result;

	expect_ok(pier_post_recv(world->b.channel, NULL, 0, &receive));
	expect_result(pier_poll_work(world->b.channel, receive, &result), 0);
	expect_ok(pier_post_send(world->a.channel, NULL, 0, &work));
	expect_result(pier_poll_work(world->b.channel, work, &result), -ESTALE);
	expect_end(world->a.channel, work, 0);
	expect_result(pier_poll_work(world->a.channel, work, &result), -ESTALE);
	expect_result(pier_wait(world->a.channel, work, PATIENT, &result), -ESTALE);
	expect_result(pier_wait(world->a.channel, none, PATIENT, &result), -ESTALE);
	expect_end(world->b.channel, receive, 0);
	expect_result(pier_poll_work(world->b.channel, receive, &result), -ESTALE);
}

static void tells_when_a_queue_is_full(void **state)
{
	struct pier_channel_attr attr = test_attr();
	struct world *world;
	struct pier_work work[4];

	attr.max_recv_wr = 4;
	world = world_connected_with(state, &attr);
	for (int i = 0; i < 4; i++)
		expect_ok(pier_post_recv(world->b.channel, NULL, 0, &work[i]));
	expect_result(pier_post_recv(world->b.channel, NULL, 0, NULL), -EAGAIN);
	expect_ok(pier_send(world->a.channel, NULL, 0, PATIENT));
	expect_end(world->b.channel, work[0], 0);
	expect_ok(pier_post_recv(world->b.channel, NULL, 0, &work[0]));
	expect_result(pier_post_recv(world->b.channel, NULL, 0, NULL), -EAGAIN);
}

/* Whoever has no handle sleeps until anything completes. */
static void wait_for_any(struct pier_channel *channel)
{
	struct pollfd fd = { .fd = pier_channel_fd(channel), .events = POLLIN };
	int collected = pier_arm_channel(channel);

	assert_true(collected >= 0);
	if (collected == 0)
		assert_int_equal(poll(&fd, 1, PATIENT), 1);
}

/* Without handles a queue may be used for ever. */
static void gives_unwatched_slots_back(void **state)
{
	struct world *world = world_connected(state);
	struct pier_gather source = gather_at(&world->a.area, 3, 9);
	struct pier_remote target = remote_at(&world->b.area, 5, 9);
	int posted = 0;

	while (posted < 500) {
		int error = pier_post_write(world->a.channel, &source, 1, &target, NULL);

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

static void gives_memory_back_when_the_time_is_up(void **state)
{
	struct world *world = world_connected(state);
	struct pier_scatter target = scatter_at(&world->b.area, 0, 5000);
	struct pier_gather source = gather_at(&world->a.area, 0, 5000);
	struct pier_result result = { 0 };
	struct pier_work other;

	expect_ok(pier_post_recv(world->b.channel, &target, 1, &other));
	expect_ok(pier_post_recv(world->b.channel, &target, 1, NULL));
	expect_result(pier_recv(world->b.channel, &target, 1, BRIEF, &result),
		      -ETIMEDOUT);
	assert_int_equal(result.error, -ECANCELED);
	assert_int_equal(pier_channel_outstanding(world->b.channel), 0);
	expect_end(world->b.channel, other, -ECANCELED);
	expect_result(pier_post_recv(world->b.channel, &target, 1, NULL), -EPIPE);
	/* The peer's message finds nobody, and the memory is left alone. */
	assert_true(pier_send(world->a.channel, &source, 1, PATIENT) < 0);
	world_expect(world);
}

/* 0 asks once; nothing there is a time that is up. */
static void asks_without_waiting(void **state)
{
	struct world *world = world_connected(state);

	expect_result(pier_recv(world->b.channel, NULL, 0, 0, NULL), -ETIMEDOUT);
	expect_result(pier_recv(world->b.channel, NULL, 0, 0, NULL), -EPIPE);
}

int run_wait_cases(void)
{
	const struct CMUnitTest cases[] = {
		world_case(sleeps_until_something_completes),
		world_case(loses_no_wake_up),
		world_case(knows_its_handles),
		world_case(tells_when_a_queue_is_full),
		world_case(gives_unwatched_slots_back),
		world_case(gives_memory_back_when_the_time_is_up),
		world_case(asks_without_waiting),
	};

	return cmocka_run_group_tests_name("waiting", cases, NULL, NULL);
}
