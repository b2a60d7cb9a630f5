/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * No wakeup is lost. A thread arms its channel and sleeps; in every order in which two
 * NICs can step between its verbs calls, each completion is collected or makes the fd
 * readable. The verbs calls are the steps: each is atomic on soft0.
 */
#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"

#include <stdlib.h>

#include <pier/post.h>

#include "channel/collect.h"
#include "provider/soft/queues/cq.h"
#include "explore.h"
#include "stepped_pair.h"

enum {
	MOST_POSTS = 3,
	LENGTH = 16,
};

/* Possible actions at any point of the thread. */
enum action {
	GO_ON,
	STEP_FIRST,
	STEP_SECOND,
	POST,
	ACTIONS
};

struct story {
	struct pair pair;
	struct explorer explorer;
	unsigned int sleeper; /* the end whose thread sleeps */
	int (*arm)(struct pier_channel *channel);
	/* Posted one after the other, at any moment. */
	int (*posts[MOST_POSTS])(struct pair *pair);
	int post_count;
	int completions; /* completions for the sleeper, of all requests posted */
	bool in_turn;	 /* the NICs step in one order only */

	int posted;
	bool exploring;
	unsigned long sleeps, lost;
};

static struct story *story_of(struct pair *pair)
{
	return (struct story *)pair;
}

/* Returns false if the action is not possible now. */
static bool act(struct story *story, enum action action)
{
	if (action == STEP_FIRST || action == STEP_SECOND)
		return pair_step(&story->pair, action == STEP_SECOND);
	if (story->posted == story->post_count)
		return false;
	expect_ok(story->posts[story->posted](&story->pair));
	story->posted++;
	return true;
}

static bool act_anyhow(struct story *story)
{
	return act(story, STEP_FIRST) || act(story, STEP_SECOND) || act(story, POST);
}

/* The part of all completions that the sleeper can see. */
static uint32_t count_visible(const struct story *story)
{
	const struct pier_channel *channel = story->pair.ends[story->sleeper].channel;

	return ((const struct soft_cq *)channel->cq)->count;
}

/*
 * Any actions, in any order, until there is another completion. Returns false if there
 * will be none.
 */
static bool bring_completion(struct story *story)
{
	uint32_t before = count_visible(story);

	while (count_visible(story) == before) {
		if (!story->in_turn &&
		    act(story, (enum action)explore_choose(&story->explorer, ACTIONS)))
			continue;
		if (!story->in_turn)
			explore_prune(&story->explorer);
		if (!act_anyhow(story))
			return false;
	}
	return true;
}

/*
 * Any number of completions come before the sleeper's next call. Those that it cannot see
 * may as well come right before the next call that can, since its calls use only its own
 * completion queue.
 */
static void happen(struct pair *pair, const struct pair_end *end)
{
	struct story *story = story_of(pair);

	if (!story->exploring || end != &pair->ends[story->sleeper])
		return;
	/* These actions are not the sleeper's. */
	story->exploring = false;
	while (explore_choose(&story->explorer, 2) == 1) {
		if (!bring_completion(story))
			explore_prune(&story->explorer);
	}
	story->exploring = true;
}

/* Until the fd is readable. Returns false if it never will be. */
static bool sleep_until_woken(struct story *story)
{
	bool woken = true;

	story->sleeps++;
	story->exploring = false;
	while (woken && !pair_readable(&story->pair, story->sleeper))
		woken = bring_completion(story);
	story->exploring = true;
	return woken;
}

/* The thread: sleeps each time that arming finds nothing. */
static void run(struct story *story)
{
	struct pier_channel *channel = story->pair.ends[story->sleeper].channel;
	int collected = 0;

	story->posted = 0;
	story->exploring = true;
	while (collected < story->completions) {
		int more = story->arm(channel);

		assert_true(more >= 0);
		collected += more;
		if (more == 0 && !sleep_until_woken(story)) {
			story->lost++;
			break;
		}
	}
	/* The next run begins like this one. */
	story->exploring = false;
	while (act_anyhow(story))
		continue;
	expect_ok(pier_channel_poll(story->pair.ends[!story->sleeper].channel) < 0);
	expect_result(collected + pier_channel_poll(channel), story->completions);
	assert_int_equal(pier_channel_outstanding(channel), 0);
	expect_ok(pier_channel_arm(channel));
	expect_ok(pier_channel_arm(story->pair.ends[!story->sleeper].channel));
}

static void explore(struct story *story)
{
	struct test_census before = test_take_census();

	pair_open(&story->pair, NULL);
	story->pair.before_verb = happen;
	do
		run(story);
	while (explore_next(&story->explorer));
	pair_close(&story->pair);
	test_assert_census(&before);
	print_message("%lu runs, %lu times asleep, %lu wake-ups lost\n",
		      story->explorer.runs, story->sleeps, story->lost);
	assert_true(story->explorer.runs > 10);
	assert_true(story->sleeps > 0);
}

static int post_receive(struct pair *pair)
{
	struct pier_scatter target = pair_scatter(pair, 1, 0, LENGTH);

	return pier_channel_post_recv(pair->ends[1].channel, &target, 1, NULL);
}

static int post_send(struct pair *pair)
{
	struct pier_gather source = pair_gather(pair, 0, 0, LENGTH);

	return pier_channel_post_send(pair->ends[0].channel, &source, 1, NULL);
}

static int post_receive_and_send(struct pair *pair)
{
	int error = post_receive(pair);

	return error ? error : post_send(pair);
}

static int post_write(struct pair *pair)
{
	struct pier_gather source = pair_gather(pair, 0, 0, LENGTH);
	struct pier_remote target = pair_remote(pair, 1, 0, LENGTH);

	return pier_channel_post_write(pair->ends[0].channel, &source, 1, &target, NULL);
}

static int post_write_back(struct pair *pair)
{
	struct pier_gather source = pair_gather(pair, 1, 0, LENGTH);
	struct pier_remote target = pair_remote(pair, 0, 0, LENGTH);

	return pier_channel_post_write(pair->ends[1].channel, &source, 1, &target, NULL);
}

/* One by one in every order of the NICs' steps; three in a single order. */
static void expect_none_lost(unsigned int sleeper, int (*post)(struct pair *pair))
{
	struct story one = { .sleeper = sleeper,
			     .arm = pier_channel_arm,
			     .posts = { post },
			     .post_count = 1,
			     .completions = 1 };
	struct story three = { .sleeper = sleeper,
			       .arm = pier_channel_arm,
			       .posts = { post, post, post },
			       .post_count = 3,
			       .completions = 3,
			       .in_turn = true };

	explore(&one);
	assert_int_equal(one.lost, 0);
	explore(&three);
	assert_int_equal(three.lost, 0);
}

static void wakes_a_sender(void **state)
{
	(void)state;
	expect_none_lost(0, post_write);
}

static void wakes_a_receiver(void **state)
{
	(void)state;
	expect_none_lost(1, post_receive_and_send);
}

/* Both queues of a channel complete into one CQ, in either order. */
static void wakes_a_thread_that_sends_and_receives(void **state)
{
	struct story story = { .sleeper = 1,
			       .arm = pier_channel_arm,
			       .posts = { post_receive_and_send, post_write_back,
					  post_receive_and_send },
			       .post_count = 3,
			       .completions = 3,
			       .in_turn = true };

	(void)state;
	explore(&story);
	assert_int_equal(story.lost, 0);
}

static void take_events(struct pier_channel *channel)
{
	struct ibv_cq *cq;
	void *context;

	while (channel->provider->get_cq_event(channel->completions.events, &cq,
					       &context) == 0)
		channel->provider->ack_cq_events(cq, 1);
}

/* Without polling once more after arming. */
static int arm_and_look_no_more(struct pier_channel *channel)
{
	int count = pier_collect(channel);

	take_events(channel);
	expect_ok(ibv_req_notify_cq(channel->cq, 0));
	return count;
}

/* Or with events taken that may belong to later completions. */
static int arm_and_take_events(struct pier_channel *channel)
{
	int count = pier_collect(channel);

	expect_ok(ibv_req_notify_cq(channel->cq, 0));
	count += pier_collect(channel);
	take_events(channel);
	return count;
}

/* These variants lose wakeups, which shows that the test detects it. */
static void detects_lost_wakeups(void **state)
{
	int (*const wrong[])(struct pier_channel *) = { arm_and_look_no_more,
							arm_and_take_events };

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		struct story story = { .sleeper = 0,
				       .arm = wrong[i],
				       .posts = { post_write },
				       .post_count = 1,
				       .completions = 1 };

		explore(&story);
		assert_true(story.lost > 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(wakes_a_sender),
		cmocka_unit_test(wakes_a_receiver),
		cmocka_unit_test(wakes_a_thread_that_sends_and_receives),
		cmocka_unit_test(detects_lost_wakeups),
	};

	/* A grant that arrives in one run would make the next ones different. */
	setenv("PIER_SOFT_CMA", "off", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
