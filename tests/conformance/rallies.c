/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <pthread.h>
#include <time.h>

#include <pier/backend.h>

#include "cases.h"
#include "world.h"

/*
 * Two threads, each with an end, that write to each other in turn and wait for
 * it by counters: who misses one wake-up waits until the deadline.
 */

enum {
	RALLIES = 1000,
	LANES_MAX = 3,	 /* channels between the ends */
	SOURCE = 4090,	 /* where a round's number stands before it is sent */
	TARGET = 100000, /* where the other's arrives */
};

struct player {
	struct end *end;
	struct pier_counter *counter;
	struct pier_channel *lanes[LANES_MAX];
	int lane_count;
	struct pier_gather source;
	struct pier_remote target;
	bool announces;
	bool begins;
	int error;
	char sentence[512];
};

/* Receives are there before the other can know of it. */
static int prepare_to_be_written(struct player *player)
{
	struct pier_mr *mr = player->end->area.mr;
	int error = 0;

	if (!player->announces)
		return pier_counter_bind(player->counter, mr);
	for (int i = 0; i < player->lane_count && !error; i++) {
		error = pier_counter_bind_imm(player->counter, mr, player->lanes[i],
					      (uint32_t)i);
		for (int receive = 0; receive < 2 && !error; receive++)
			error = pier_post_recv(player->lanes[i], NULL, 0, NULL);
	}
	return error;
}

/* Through one lane after the other. */
static int strike(struct player *player, uint64_t round)
{
	uint32_t lane = (uint32_t)(round % (uint64_t)player->lane_count);
	int error = pier_buffer_copy_to(player->end->area.buffer, SOURCE, &round,
					sizeof(round));

	if (error)
		return error;
	if (!player->announces)
		return pier_channel_write(player->lanes[lane], &player->source, 1,
					  &player->target, PATIENT);
	return pier_channel_write_imm(player->lanes[lane], &player->source, 1,
				      &player->target, lane, PATIENT);
}

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A wake-up that is lost ends with the deadline, and finds the value then. */
static int wait_awake(struct pier_counter *counter, uint64_t threshold)
{
	int64_t start = now_ms();
	int error = pier_counter_wait(counter, threshold, PATIENT);

	if (!error && now_ms() - start >= PATIENT)
		return pier_fail(ETIME, "nobody was woken for round %llu",
				 (unsigned long long)threshold);
	return error;
}

/* The number has come when the counter says so. */
static int await_strike(struct player *player, uint64_t round)
{
	int lane = (int)(round % (uint64_t)player->lane_count);
	uint64_t found = 0;
	int error = wait_awake(player->counter, round);

	if (!error)
		error = pier_buffer_copy_from(player->end->area.buffer, TARGET, &found,
					      sizeof(found));
	if (!error && found != round)
		error = pier_fail(EBADMSG, "round %llu, but the bytes of round %llu",
				  (unsigned long long)round, (unsigned long long)found);
	if (!error && player->announces)
		error = pier_post_recv(player->lanes[lane], NULL, 0, NULL);
	return error;
}

static void *play(void *argument)
{
	struct player *player = argument;
	int error = 0;

	for (uint64_t round = 1; round <= RALLIES && !error; round++) {
		error = player->begins ? strike(player, round)
				       : await_strike(player, round);
		if (!error)
			error = player->begins ? await_strike(player, round)
					       : strike(player, round);
	}
	player->error = error;
	snprintf(player->sentence, sizeof(player->sentence), "%s", pier_error_message());
	return NULL;
}

/* More channels between the ends, beside their own. */
static void open_lanes(struct player *a, struct player *b, int count)
{
	a->lanes[0] = a->end->channel;
	b->lanes[0] = b->end->channel;
	a->lane_count = b->lane_count = count;
	for (int i = 1; i < count; i++) {
		struct end more_a = { .pd = a->end->pd }, more_b = { .pd = b->end->pd };

		expect_ok(end_prepare(&more_a, NULL));
		expect_ok(end_prepare(&more_b, NULL));
		expect_ok(ends_connect(&more_a, &more_b));
		a->lanes[i] = more_a.channel;
		b->lanes[i] = more_b.channel;
	}
}

static void make_ready(struct player *player, struct player *other)
{
	expect_ok(pier_counter_create(player->end->pd, &player->counter));
	player->source = gather_at(&player->end->area, SOURCE, sizeof(uint64_t));
	player->target = remote_at(&other->end->area, TARGET, sizeof(uint64_t));
	expect_ok(prepare_to_be_written(player));
}

static void go_home(struct player *player)
{
	uint64_t last = RALLIES;

	if (player->error)
		fail_msg("%d: %s", player->error, player->sentence);
	memcpy(player->end->area.image + SOURCE, &last, sizeof(last));
	memcpy(player->end->area.image + TARGET, &last, sizeof(last));
	assert_int_equal(pier_counter_read(player->counter), RALLIES);
	expect_ok(pier_counter_unbind(player->counter, player->end->area.mr));
	expect_ok(pier_counter_destroy(player->counter));
	for (int i = 1; i < player->lane_count; i++)
		expect_ok(pier_channel_destroy(player->lanes[i]));
}

static void rally(struct world *world, bool announces, int lanes)
{
	struct player a = { .end = &world->a, .announces = announces, .begins = true };
	struct player b = { .end = &world->b, .announces = announces };
	pthread_t thread;

	open_lanes(&a, &b, lanes);
	make_ready(&a, &b);
	make_ready(&b, &a);
	assert_int_equal(pthread_create(&thread, NULL, play, &b), 0);
	play(&a);
	assert_int_equal(pthread_join(thread, NULL), 0);
	go_home(&a);
	go_home(&b);
	world_expect(world);
}

static void device_counter_loses_no_wake_up(void **state)
{
	struct world *world = world_connected(state);
	struct pier_device_attr a, b;

	expect_ok(pier_query_device(world->a.device, &a));
	expect_ok(pier_query_device(world->b.device, &b));
	if (!a.counters || !b.counters)
		world_skip("the device does not count writes");
	rally(world, false, 1);
}

static void immediate_counter_loses_no_wake_up(void **state)
{
	rally(world_connected(state), true, 1);
}

static void shared_counter_loses_no_wake_up(void **state)
{
	rally(world_connected(state), true, LANES_MAX);
}

int run_rally_cases(void)
{
	const struct CMUnitTest cases[] = {
		world_case(device_counter_loses_no_wake_up),
		world_case(immediate_counter_loses_no_wake_up),
		world_case(shared_counter_loses_no_wake_up),
	};

	return cmocka_run_group_tests_name("counters of two threads", cases, NULL, NULL);
}
