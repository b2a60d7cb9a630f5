/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Short exchanges between two channels, in every order of their NICs' steps and the two
 * sides' calls: the invariants always hold, and every possible outcome occurs.
 */
#include "tests/support/cmocka.h"
#include "tests/support/requests.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"

#include <errno.h>

#include <pier/post.h>
#include <pier/waiting.h>

#include "channel/channel.h"
#include "explore.h"
#include "stepped_pair.h"

enum {
	LENGTH = 24,
	WRITTEN_AT = 100, /* in the memory of the second */
	RECEIVED_AT = 200,
	READ_AT = 300, /* in the memory of the first */
	IMMEDIATE = 0x1234567,
	GUARD = 0xee,
	POISON = 0xdd, /* in memory that was deregistered */
};

enum action {
	CALL_FIRST,
	CALL_SECOND,
	STEP_FIRST,
	STEP_SECOND,
	ACTIONS
};

struct talk {
	struct pair pair;
	struct explorer explorer;
	/*
	 * How often a run may deviate from the usual action; 0: any number of times. The
	 * usual one is the first possible action of enum action.
	 */
	unsigned int most_deviations, deviations;
	/* The calls of each side in order, NULL after the last. */
	int (*calls[2][4])(struct talk *talk);
	int called[2];
	bool opened, received;
	struct pier_work write, read, send, receive;
	unsigned long good, failed;
};

static uint8_t *memory_of(const struct talk *talk, unsigned int end, size_t offset)
{
	return talk->pair.ends[end].memory + offset;
}

static struct pier_channel *channel_of(const struct talk *talk, unsigned int end)
{
	return talk->pair.ends[end].channel;
}

static int post_write(struct talk *talk)
{
	struct pier_gather source = pair_gather(&talk->pair, 0, 0, LENGTH);
	struct pier_remote target = pair_remote(&talk->pair, 1, WRITTEN_AT, LENGTH);

	return pier_channel_post_write(channel_of(talk, 0), &source, 1, &target,
				       &talk->write);
}

/* Number of bytes that the write wrote. */
static int post_read(struct talk *talk)
{
	struct pier_scatter target = pair_scatter(&talk->pair, 0, READ_AT, LENGTH);
	struct pier_remote source = pair_remote(&talk->pair, 1, WRITTEN_AT, LENGTH);

	return pier_channel_post_read(channel_of(talk, 0), &target, 1, &source,
				      &talk->read);
}

static int post_send(struct talk *talk)
{
	struct pier_gather source = pair_gather(&talk->pair, 0, LENGTH, LENGTH);

	return test_post_send_imm(channel_of(talk, 0), &source, 1, IMMEDIATE,
				  &talk->send);
}

/* Unless the peer's send has broken it already. */
static int post_receive(struct talk *talk)
{
	struct pier_scatter target = pair_scatter(&talk->pair, 1, RECEIVED_AT, LENGTH);
	int error = pier_channel_post_recv(channel_of(talk, 1), &target, 1,
					   &talk->receive);

	return error == -EPIPE ? 0 : error;
}

/* The NICs continue while the channel waits for the requests it cancelled. */
static void settle(struct pair *pair, const struct pair_end *end)
{
	(void)end;
	pair->before_verb = NULL;
	pair_settle(pair);
	pair->before_verb = settle;
}

static int cancel(struct talk *talk)
{
	struct pier_channel *channel = channel_of(talk, 0);
	int error;

	talk->pair.before_verb = settle;
	error = pier_channel_cancel(channel);
	talk->pair.before_verb = NULL;
	assert_int_equal(pier_channel_outstanding(channel), 0);
	/* From here on the peer must not read it. */
	memset(memory_of(talk, 0, 0), POISON, PAIR_MEMORY);
	return error;
}

/* Returns false if the action is not possible now. */
static bool act(struct talk *talk, enum action action)
{
	int (*call)(struct talk * talk);

	if (action == STEP_FIRST || action == STEP_SECOND)
		return pair_step(&talk->pair, action == STEP_SECOND);
	call = talk->calls[action][talk->called[action]];
	if (!call)
		return false;
	expect_ok(call(talk));
	talk->called[action]++;
	return true;
}

static bool act_as_usual(struct talk *talk)
{
	for (int action = 0; action < ACTIONS; action++) {
		if (act(talk, (enum action)action))
			return true;
	}
	return false;
}

/* Returns false if no action is possible any more. */
static bool go_on(struct talk *talk)
{
	unsigned int usual = talk->most_deviations > 0, choice;

	if (usual && talk->deviations == talk->most_deviations)
		return act_as_usual(talk);
	choice = explore_choose(&talk->explorer, ACTIONS + usual);
	if (usual && choice == 0)
		return act_as_usual(talk);
	talk->deviations++;
	if (act(talk, (enum action)(choice - usual)))
		return true;
	explore_prune(&talk->explorer);
	return act_as_usual(talk);
}

static void fill(uint8_t *bytes, size_t length)
{
	for (size_t i = 0; i < length; i++)
		bytes[i] = (uint8_t)(i + 1);
}

/* At the second use of a key the NIC asks whether it may copy directly. */
static void use_key(struct talk *talk)
{
	struct pier_work work;
	struct pier_result result;

	for (int i = 0; i < 2; i++) {
		expect_ok(post_write(talk));
		work = talk->write;
		pair_settle(&talk->pair);
		assert_int_equal(pier_work_poll(channel_of(talk, 0), work, &result), 1);
		assert_int_equal(result.error, 0);
	}
	pair_settle(&talk->pair);
}

static void begin(struct talk *talk)
{
	struct pier_channel_attr attr;

	pier_channel_attr_init(&attr);
	/* Timers that expire soon have expired before a NIC continues. */
	attr.min_rnr_timer = 1;
	attr.rnr_retry_count = 1;
	if (!talk->opened) {
		pair_open(&talk->pair, &attr);
		use_key(talk);
	}
	talk->opened = true;
	talk->deviations = 0;
	talk->called[0] = talk->called[1] = 0;
	talk->received = false;
	memset(memory_of(talk, 0, 0), GUARD, PAIR_MEMORY);
	memset(memory_of(talk, 1, 0), GUARD, PAIR_MEMORY);
	fill(memory_of(talk, 0, 0), 2 * LENGTH);
}

/* A broken pair cannot be reused for the next order. */
static void end(struct talk *talk)
{
	if (channel_of(talk, 0)->broken || channel_of(talk, 1)->broken) {
		pair_close(&talk->pair);
		talk->opened = false;
	}
}

static bool is(const struct talk *talk, unsigned int end, size_t offset, int byte)
{
	for (size_t i = 0; i < LENGTH; i++) {
		if (*memory_of(talk, end, offset + i) != byte)
			return false;
	}
	return true;
}

static void expect_written(const struct talk *talk)
{
	uint8_t bytes[2 * LENGTH];

	fill(bytes, sizeof(bytes));
	assert_memory_equal(memory_of(talk, 1, WRITTEN_AT), bytes, LENGTH);
	assert_int_equal(*memory_of(talk, 1, WRITTEN_AT - 1), GUARD);
	assert_int_equal(*memory_of(talk, 1, WRITTEN_AT + LENGTH), GUARD);
}

static void expect_received(const struct talk *talk, const struct pier_result *result)
{
	uint8_t bytes[2 * LENGTH];

	fill(bytes, sizeof(bytes));
	assert_int_equal(result->byte_length, LENGTH);
	assert_true(result->has_immediate);
	assert_int_equal(result->immediate, IMMEDIATE);
	assert_memory_equal(memory_of(talk, 1, RECEIVED_AT), bytes + LENGTH, LENGTH);
	assert_int_equal(*memory_of(talk, 1, RECEIVED_AT - 1), GUARD);
	assert_int_equal(*memory_of(talk, 1, RECEIVED_AT + LENGTH), GUARD);
}

/* At every moment: a side that has received a send has the bytes written before it. */
static void look_for_receive(struct talk *talk)
{
	struct pier_result result;

	if (talk->received || talk->called[1] == 0 || channel_of(talk, 1)->broken ||
	    pier_work_poll(channel_of(talk, 1), talk->receive, &result) != 1)
		return;
	if (result.error)
		return;
	talk->received = true;
	expect_received(talk, &result);
	if (talk->calls[0][0] == post_write)
		expect_written(talk);
}

static void explore(struct talk *talk, void (*judge)(struct talk *talk))
{
	struct test_census before = test_take_census();

	do {
		begin(talk);
		while (go_on(talk))
			look_for_receive(talk);
		judge(talk);
		end(talk);
	} while (explore_next(&talk->explorer));
	if (talk->opened)
		pair_close(&talk->pair);
	test_assert_census(&before);
	print_message("%lu runs: %lu good, %lu failed\n", talk->explorer.runs, talk->good,
		      talk->failed);
}

static int result_of(struct talk *talk, struct pier_work work)
{
	struct pier_result result = { 0 };

	expect_result(pier_work_poll(channel_of(talk, 0), work, &result), 1);
	return result.error;
}

/* A receive is posted in time; otherwise the sender gets the reason. */
static void judge_send(struct talk *talk)
{
	int error = result_of(talk, talk->send);

	assert_int_equal(error, talk->received ? 0 : -EAGAIN);
	assert_int_equal(pier_channel_outstanding(channel_of(talk, 0)), 0);
	if (error)
		assert_true(is(talk, 1, RECEIVED_AT, GUARD));
	talk->good += !error;
	talk->failed += error != 0;
}

static void sends_in_every_order(void **state)
{
	struct talk talk = { .calls = { { post_send }, { post_receive } } };

	(void)state;
	explore(&talk, judge_send);
	assert_true(talk.good > 0);
	assert_true(talk.failed > 0);
}

static void judge_all(struct talk *talk)
{
	assert_int_equal(result_of(talk, talk->write), 0);
	assert_int_equal(result_of(talk, talk->read), 0);
	expect_written(talk);
	assert_memory_equal(memory_of(talk, 0, READ_AT), memory_of(talk, 0, 0), LENGTH);
	assert_int_equal(*memory_of(talk, 0, READ_AT - 1), GUARD);
	assert_int_equal(*memory_of(talk, 0, READ_AT + LENGTH), GUARD);
	judge_send(talk);
}

/* All orders that differ twice from the usual one. */
static void talks_in_many_orders(void **state)
{
	struct talk talk = { .calls = { { post_write, post_read, post_send },
					{ post_receive } },
			     .most_deviations = 2 };

	(void)state;
	explore(&talk, judge_all);
	assert_true(talk.good > 0);
}

/*
 * All of it or nothing, and never bytes written into the memory after it was
 * deregistered.
 */
static void judge_cancelled(struct talk *talk)
{
	int error = result_of(talk, talk->write);

	if (error)
		assert_int_equal(error, -ECANCELED);
	if (!error || !is(talk, 1, WRITTEN_AT, GUARD))
		expect_written(talk);
	talk->good += !error;
	talk->failed += error != 0;
}

static void cancels_at_every_moment(void **state)
{
	struct talk talk = { .calls = { { post_write, cancel } } };

	(void)state;
	explore(&talk, judge_cancelled);
	assert_true(talk.good > 0);
	assert_true(talk.failed > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sends_in_every_order),
		cmocka_unit_test(talks_in_many_orders),
		cmocka_unit_test(cancels_at_every_moment),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
