/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <pthread.h>
#include <time.h>

#include <pier/backend.h>

#include "cases.h"
#include "world.h"

/*
 * Two threads, each with an end, write to each other in turn and wait for the other's
 * write with counters. A thread that misses one wake-up waits until the deadline.
 */

enum {
	ROUNDS = 1000,
	CHANNELS_MAX = 3, /* channels between the ends */
	SOURCE = 4090,	  /* offset from which a round's number is sent */
	TARGET = 100000,  /* offset at which the other's number arrives */
};

struct player {
	struct end *end;
	struct pier_counter *counter;
	struct pier_channel *channels[CHANNELS_MAX];
	int channel_count;
	struct pier_gather source;
	struct pier_remote target;
	bool announces;
	bool begins;
	int error;
	char sentence[512];
};

/* Receives must be posted before the other can write. */
static int bind_counter(struct player *player)
{
	struct pier_mr *mr = player->end->area.mr;
	int error = 0;

	if (!player->announces)
		return pier_counter_bind(player->counter, mr);
	for (int i = 0; i < player->channel_count && !error; i++) {
		error = pier_counter_bind_imm(player->counter, mr, player->channels[i],
					      (uint32_t)i);
		for (int receive = 0; receive < 2 && !error; receive++)
			error = pier_channel_post_recv(player->channels[i], NULL, 0,
						       NULL);
	}
	return error;
}

/* Uses the channels in turn. */
static int write_number(struct player *player, uint64_t round)
{
	uint32_t index = (uint32_t)(round % (uint64_t)player->channel_count);
	int error = pier_buffer_copy_to(player->end->area.buffer, SOURCE, &round,
					sizeof(round));

	if (error)
		return error;
	if (!player->announces)
		return pier_channel_write(player->channels[index], &player->source, 1,
					  &player->target, PATIENT);
	return test_channel_write_imm(player->channels[index], &player->source, 1,
				      &player->target, index, PATIENT);
}

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* If a wake-up is lost, the wait ends at the deadline although the value is there. */
static int wait_awake(struct pier_counter *counter, uint64_t threshold)
{
	int64_t start = now_ms();
	int done = pier_counter_wait(counter, threshold, PATIENT);

	if (done == 1 && now_ms() - start >= PATIENT)
		return pier_fail(ETIME, "nobody was woken for round %llu",
				 (unsigned long long)threshold);
	return done < 0 ? done : 0;
}

/* When the counter has counted the write, its bytes must be there. */
static int await_number(struct player *player, uint64_t round)
{
	int index = (int)(round % (uint64_t)player->channel_count);
	uint64_t found = 0;
	int error = wait_awake(player->counter, round);

	if (!error)
		error = pier_buffer_copy_from(player->end->area.buffer, TARGET, &found,
					      sizeof(found));
	if (!error && found != round)
		error = pier_fail(EBADMSG, "round %llu, but the bytes of round %llu",
				  (unsigned long long)round, (unsigned long long)found);
	if (!error && player->announces)
		error = pier_channel_post_recv(player->channels[index], NULL, 0, NULL);
	return error;
}

static void *play(void *argument)
{
	struct player *player = argument;
	int error = 0;

	for (uint64_t round = 1; round <= ROUNDS && !error; round++) {
		error = player->begins ? write_number(player, round)
				       : await_number(player, round);
		if (!error)
			error = player->begins ? await_number(player, round)
					       : write_number(player, round);
	}
	player->error = error;
	snprintf(player->sentence, sizeof(player->sentence), "%s", pier_error_message());
	return NULL;
}

/* Opens more channels between the ends, besides their own. */
static void open_channels(struct player *a, struct player *b, int count)
{
	a->channels[0] = a->end->channel;
	b->channels[0] = b->end->channel;
	a->channel_count = b->channel_count = count;
	for (int i = 1; i < count; i++) {
		struct end more_a = { .pd = a->end->pd }, more_b = { .pd = b->end->pd };

		expect_ok(end_prepare(&more_a, NULL));
		expect_ok(end_prepare(&more_b, NULL));
		expect_ok(ends_connect(&more_a, &more_b));
		a->channels[i] = more_a.channel;
		b->channels[i] = more_b.channel;
	}
}

static void prepare_player(struct player *player, struct player *other)
{
	expect_ok(pier_counter_create(player->end->pd, &player->counter));
	player->source = gather_at(&player->end->area, SOURCE, sizeof(uint64_t));
	player->target = remote_at(&other->end->area, TARGET, sizeof(uint64_t));
	expect_ok(bind_counter(player));
}

static void finish_player(struct player *player)
{
	uint64_t last = ROUNDS;

	if (player->error)
		fail_msg("%d: %s", player->error, player->sentence);
	memcpy(player->end->area.image + SOURCE, &last, sizeof(last));
	memcpy(player->end->area.image + TARGET, &last, sizeof(last));
	assert_int_equal(pier_counter_read(player->counter), ROUNDS);
	expect_ok(pier_counter_unbind(player->counter, player->end->area.mr));
	expect_ok(pier_counter_destroy(player->counter));
	for (int i = 1; i < player->channel_count; i++)
		expect_ok(pier_channel_destroy(player->channels[i]));
}

static void play_ping_pong(struct world *world, bool announces, int channels)
{
	struct player a = { .end = &world->a, .announces = announces, .begins = true };
	struct player b = { .end = &world->b, .announces = announces };
	pthread_t thread;

	open_channels(&a, &b, channels);
	prepare_player(&a, &b);
	prepare_player(&b, &a);
	assert_int_equal(pthread_create(&thread, NULL, play, &b), 0);
	play(&a);
	assert_int_equal(pthread_join(thread, NULL), 0);
	finish_player(&a);
	finish_player(&b);
	world_expect(world);
}

static void device_counter_loses_no_wake_up(void **state)
{
	struct world *world = world_connected(state);
	struct pier_device_attr a, b;

	expect_ok(pier_device_query(world->a.device, &a, sizeof(a)));
	expect_ok(pier_device_query(world->b.device, &b, sizeof(b)));
	if (!a.counters || !b.counters)
		world_skip("the device does not count writes");
	play_ping_pong(world, false, 1);
}

static void immediate_counter_loses_no_wake_up(void **state)
{
	play_ping_pong(world_connected(state), true, 1);
}

static void shared_counter_loses_no_wake_up(void **state)
{
	play_ping_pong(world_connected(state), true, CHANNELS_MAX);
}

int run_ping_pong_cases(void)
{
	const struct CMUnitTest cases[] = {
		world_case(device_counter_loses_no_wake_up),
		world_case(immediate_counter_loses_no_wake_up),
		world_case(shared_counter_loses_no_wake_up),
	};

	return cmocka_run_group_tests_name("counters of two threads", cases, NULL, NULL);
}
