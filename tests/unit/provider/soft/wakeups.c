/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * No wake-up is lost: in every order in which two NICs can go on between the calls of
 * verbs of a thread that arms its channel and sleeps, what completes is collected or
 * makes the fd readable. The calls of verbs are the steps: each is atomic on soft0.
 */
#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"

#include <pier/post.h>

#include "channel/collect.h"
#include "provider/soft/queues/cq.h"
#include "explore.h"
#include "stepped_pair.h"

enum {
	MOST_POSTS = 3,
	LENGTH = 16,
};

/* What may happen while the thread is anywhere. */
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
	int completions; /* of the sleeper's, of all that is posted */
	bool in_turn;	 /* the NICs go on in one order alone */

	int posted;
	bool exploring;
	unsigned long sleeps, lost;
};

static struct story *story_of(struct pair *pair)
{
	return (struct story *)pair;
}

/* False: that is not possible now. */
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

/* What of all that the sleeper can see. */
static uint32_t count_visible(const struct story *story)
{
	const struct pier_channel *channel = story->pair.ends[story->sleeper].channel;

	return ((const struct soft_cq *)channel->cq)->count;
}

/* Anything, in any order, until there is a completion more. False: there will be none. */
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
 * Any number of completions come before the sleeper makes its next call. What it cannot
 * see may as well have happened right before the next that it can: its calls are on its
 * completion queue alone.
 */
static void happen(struct pair *pair, const struct pair_end *end)
{
	struct story *story = story_of(pair);

	if (!story->exploring || end != &pair->ends[story->sleeper])
		return;
	/* What happens is not the sleeper's doing. */
	story->exploring = false;
	while (explore_choose(&story->explorer, 2) == 1) {
		if (!bring_completion(story))
			explore_prune(&story->explorer);
	}
	story->exploring = true;
}

/* Until the fd is readable. False: nothing will ever make it so. */
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

/* The thread: sleeps as often as arming says that there was nothing. */
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
	/* The next run begins as this one did. */
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

	return pier_post_recv(pair->ends[1].channel, &target, 1, NULL);
}

static int post_send(struct pair *pair)
{
	struct pier_gather source = pair_gather(pair, 0, 0, LENGTH);

	return pier_post_send(pair->ends[0].channel, &source, 1, NULL);
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

	return pier_post_write(pair->ends[0].channel, &source, 1, &target, NULL);
}

static int post_write_back(struct pair *pair)
{
	struct pier_gather source = pair_gather(pair, 1, 0, LENGTH);
	struct pier_remote target = pair_remote(pair, 0, 0, LENGTH);

	return pier_post_write(pair->ends[1].channel, &source, 1, &target, NULL);
}

/* One by one in every order of the NICs' steps; three in one order of these. */
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

static void wakes_who_sends(void **state)
{
	(void)state;
	expect_none_lost(0, post_write);
}

static void wakes_who_receives(void **state)
{
	(void)state;
	expect_none_lost(1, post_receive_and_send);
}

/* Both queues of a channel complete into one, whichever comes first. */
static void wakes_who_does_both(void **state)
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

	while (channel->provider->get_cq_event(channel->events, &cq, &context) == 0)
		channel->provider->ack_cq_events(cq, 1);
}

/* As it would be without looking once more. */
static int arm_and_look_no_more(struct pier_channel *channel)
{
	int count = pier_collect(channel);

	take_events(channel);
	expect_ok(ibv_req_notify_cq(channel->cq, 0));
	return count;
}

/* Or with the events taken when they may be those of what comes next. */
static int arm_and_take_events(struct pier_channel *channel)
{
	int count = pier_collect(channel);

	expect_ok(ibv_req_notify_cq(channel->cq, 0));
	count += pier_collect(channel);
	take_events(channel);
	return count;
}

/* So that it would be seen: these lose some. */
static void sees_what_is_lost(void **state)
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
		cmocka_unit_test(wakes_who_sends),
		cmocka_unit_test(wakes_who_receives),
		cmocka_unit_test(wakes_who_does_both),
		cmocka_unit_test(sees_what_is_lost),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
