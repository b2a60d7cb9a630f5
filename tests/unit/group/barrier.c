/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Barriers of groups: no rank passes before all have come, and the right rank is named.
 */
#include "tests/support/cmocka.h"
#include "tests/support/requests.h"
#include "tests/support/expect.h"
#include "tests/support/manual_clock.h"
#include "group_fixture.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "group/group.h"
#include "core/error.h"

enum {
	BARRIERS = 40,
	/*
	 * A few thousand in the 50 us before the thread sleeps, then one for each event.
	 */
	MANY_LOOKS = 100000,
	LONGER = 1500,	  /* enough for the ranks that come, on a busy machine too */
	SLACK_MS = 30000, /* tolerance for a busy machine */
};

static const uint32_t sizes[] = { 1, 2, 3, 5, 8, 16 };
static const enum pier_barrier_algorithm algorithms[] = {
	PIER_BARRIER_CENTRAL,
	PIER_BARRIER_BINARY_TREE,
	PIER_BARRIER_DISSEMINATION,
};
static enum pier_barrier_algorithm algorithm; /* of the running test */

static struct crew *connected(void **state, uint32_t size)
{
	struct group_fixture *fixture = *state;

	expect_ok(crew_open(&fixture->crew, size, "soft0", "soft0", "host", NULL, seed));
	expect_ok(crew_exchange(&fixture->crew));
	expect_ok(crew_connect(&fixture->crew));
	return &fixture->crew;
}

static void disconnect(void **state)
{
	struct group_fixture *fixture = *state;

	expect_ok(crew_close(&fixture->crew));
	fixture->crew.size = 0;
}

/* How many ranks have come to each barrier. */
static atomic_uint came[BARRIERS];

/* Yield to others, sometimes for some milliseconds. */
static void dawdle(struct test_random *random)
{
	struct timespec pause = { .tv_nsec = 3000000 };

	for (uint64_t turns = test_random_below(random, 4); turns > 0; turns--)
		sched_yield();
	if (test_random_below(random, 30) == 0)
		nanosleep(&pause, NULL);
}

static int expect_all_came(unsigned int barrier, unsigned int count)
{
	if (atomic_load(&came[barrier]) == count)
		return 0;
	return pier_fail(EBADE, "passed barrier %u when %u of %u had come", barrier,
			 atomic_load(&came[barrier]), count);
}

static int pass_many(struct crew_member *member)
{
	struct test_random random = { seed + 77 * member->rank + 1 };
	int error = 0;

	for (unsigned int i = 0; i < BARRIERS && !error; i++) {
		dawdle(&random);
		atomic_fetch_add(&came[i], 1);
		error = pier_group_barrier_of(member->group, algorithm, NULL, 0,
					      CREW_PATIENT);
		if (!error)
			error = expect_all_came(i, member->crew->size);
	}
	return error;
}

static void no_rank_passes_before_all_have_come(void **state)
{
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct crew *crew = connected(state, sizes[i]);

		for (size_t j = 0; j < sizeof(algorithms) / sizeof(algorithms[0]); j++) {
			algorithm = algorithms[j];
			memset(came, 0, sizeof(came));
			expect_ok(crew_run(crew, pass_many));
		}
		disconnect(state);
	}
}

/* The same random sets and algorithms in all ranks. */
static int pass_some(struct crew_member *member)
{
	struct test_random common = { seed + 5 }, own = { seed + 9 * member->rank + 6 };
	int error = 0;

	for (unsigned int i = 0; i < BARRIERS && !error; i++) {
		enum pier_barrier_algorithm any =
			algorithms[test_random_below(&common, 3)];
		uint32_t ranks[CREW_MAX], count = 0;
		bool included = false;

		for (uint32_t rank = 0; rank < member->crew->size; rank++) {
			if (test_random_below(&common, 3) == 0)
				continue;
			ranks[count++] = rank;
			included = included || rank == member->rank;
		}
		if (!included)
			continue;
		dawdle(&own);
		atomic_fetch_add(&came[i], 1);
		error = pier_group_barrier_of(member->group, any, ranks, count,
					      CREW_PATIENT);
		if (!error)
			error = expect_all_came(i, count);
	}
	return error;
}

static void random_sets_and_algorithms_work(void **state)
{
	struct crew *crew = connected(state, 8);

	memset(came, 0, sizeof(came));
	expect_ok(crew_run(crew, pass_some));
}

static int pass_one(struct crew_member *member)
{
	return pier_group_barrier_of(member->group, algorithm, NULL, 0,
				     member->crew->timeout_ms);
}

/* A rank may leave right after a barrier: no other rank suffers. */
static int pass_and_leave(struct crew_member *member)
{
	int error = pass_one(member);

	if (!error)
		error = pier_group_destroy(member->group);
	if (!error)
		member->group = NULL;
	return error;
}

static void rank_may_leave_right_after_a_barrier(void **state)
{
	for (int i = 0; i < 12; i++) {
		struct crew *crew = connected(state, 5);

		algorithm = algorithms[i % 3];
		expect_ok(crew_run(crew, pass_and_leave));
		disconnect(state);
	}
}

/* One rank is late by a second: the others sleep meanwhile. */
static int sleep_in_a_barrier(struct crew_member *member)
{
	struct timespec second = { .tv_sec = 1 };
	uint64_t before = member->group->look, looks;
	int error;

	if (member->rank == 1)
		nanosleep(&second, NULL);
	error = pass_one(member);
	looks = member->group->look - before;
	if (!error && looks > MANY_LOOKS)
		error = pier_fail(EBUSY, "looked %llu times in a barrier",
				  (unsigned long long)looks);
	return error;
}

static void waiting_ranks_sleep(void **state)
{
	struct crew *crew = connected(state, 3);

	for (size_t i = 0; i < sizeof(algorithms) / sizeof(algorithms[0]); i++) {
		algorithm = algorithms[i];
		expect_ok(crew_run(crew, sleep_in_a_barrier));
	}
}

/* Errors by rank; each member names that rank, and none is late. */
static void expect_blamed(const struct crew *crew, uint32_t mask, uint32_t culprit,
			  int error)
{
	for (uint32_t rank = 0; rank < crew->size; rank++) {
		const struct crew_member *member = &crew->members[rank];
		char name[32];

		if (!(mask >> rank & 1))
			continue;
		snprintf(name, sizeof(name), "rank %u ", culprit);
		if (member->error != error || !strstr(member->sentence, name) ||
		    pier_group_failed_rank(member->group) != (int)culprit)
			fail_msg("rank %u: %d, blames %d: %s", rank, member->error,
				 pier_group_failed_rank(member->group), member->sentence);
		if (member->took_ms > crew->timeout_ms + SLACK_MS)
			fail_msg("rank %u: took %lld ms", rank,
				 (long long)member->took_ms);
	}
}

/* The first rank knows who is missing, and tells the others, whose deadline is later. */
static int pass_patiently(struct crew_member *member)
{
	return pier_group_barrier_of(member->group, algorithm, NULL, 0,
				     member->rank == 0 ? LONGER : CREW_PATIENT);
}

static void first_rank_names_the_missing_rank(void **state)
{
	struct crew *crew = connected(state, 5);
	uint32_t mask = 0x1f & ~(1u << 3);

	algorithm = PIER_BARRIER_CENTRAL;
	crew->timeout_ms = LONGER;
	expect_result(crew_run_some(crew, mask, pass_patiently), -ETIMEDOUT);
	expect_blamed(crew, mask, 3, -ETIMEDOUT);
	assert_non_null(strstr(crew->members[0].sentence, "rank 3 of 5 did not come"));
	assert_non_null(strstr(crew->members[1].sentence,
			       "rank 0 of 5 says that rank 3 did not come"));
	/* A rank that comes too late gets the error at once, and does not wait. */
	crew->timeout_ms = CREW_PATIENT;
	expect_result(crew_run_some(crew, 1u << 3, pass_one), -ETIMEDOUT);
	assert_true(crew->members[3].took_ms < CREW_PATIENT);
	assert_int_equal(pier_group_failed_rank(crew->members[3].group), 3);
	test_assert_sentence("rank 0 of 5 says that rank 3 did not come in time");
}

static void all_missing_ranks_are_named(void **state)
{
	struct crew *crew = connected(state, 5);

	algorithm = PIER_BARRIER_CENTRAL;
	expect_result(crew_run_some(crew, 0x15, pass_patiently), -ETIMEDOUT);
	assert_non_null(strstr(crew->members[0].sentence,
			       "ranks 1, 3 of 5 did not come within 1500 ms"));
	assert_int_equal(pier_group_failed_rank(crew->members[0].group), 1);
}

/* With each algorithm and each missing rank, none waits beyond its deadline. */
static void no_rank_waits_beyond_its_deadline(void **state)
{
	for (size_t i = 0; i < sizeof(algorithms) / sizeof(algorithms[0]); i++) {
		for (uint32_t missing = 0; missing < 5; missing++) {
			struct crew *crew = connected(state, 5);
			uint32_t mask = 0x1f & ~(1u << missing);

			algorithm = algorithms[i];
			crew->timeout_ms = CREW_BRIEF;
			crew_run_some(crew, mask, pass_one);
			for (uint32_t rank = 0; rank < 5; rank++) {
				const struct crew_member *member = &crew->members[rank];

				if (rank == missing)
					continue;
				assert_int_equal(member->error, -ETIMEDOUT);
				assert_true(member->took_ms < CREW_BRIEF + SLACK_MS);
				assert_int_not_equal(
					pier_group_failed_rank(member->group), -1);
				/* For good: barriers are broken, requests are not. */
				expect_result(pier_group_barrier(member->group, 0),
					      -EPIPE);
				test_assert_sentence("failed before");
			}
			disconnect(state);
		}
	}
}

/* All name a member that is gone, long before their deadline. */
static void every_rank_names_a_dead_member(void **state)
{
	for (size_t i = 0; i < sizeof(algorithms) / sizeof(algorithms[0]); i++) {
		for (uint32_t gone = 0; gone < 5; gone++) {
			struct crew *crew = connected(state, 5);
			uint32_t mask = 0x1f & ~(1u << gone);

			algorithm = algorithms[i];
			expect_ok(pier_group_destroy(crew->members[gone].group));
			crew->members[gone].group = NULL;
			crew->timeout_ms = CREW_PATIENT;
			expect_result(crew_run_some(crew, mask, pass_one), -ECONNRESET);
			crew->timeout_ms = 0;
			expect_blamed(crew, mask, gone, -ECONNRESET);
			disconnect(state);
		}
	}
}

/* The channel to a rank that reported its failure and left may be known to be broken. */
static void late_rank_gets_the_report_of_a_rank_that_left(void **state)
{
	struct crew *crew = connected(state, 3);
	struct pier_channel *control = crew->members[1].group->members[0].control;

	algorithm = PIER_BARRIER_CENTRAL;
	crew->timeout_ms = CREW_PATIENT;
	expect_ok(pier_group_destroy(crew->members[2].group));
	crew->members[2].group = NULL;
	expect_result(crew_run_some(crew, 1u << 0, pass_one), -ECONNRESET);
	expect_ok(pier_group_destroy(crew->members[0].group));
	crew->members[0].group = NULL;
	while (!control->broken)
		assert_true(pier_channel_poll(control) >= 0);
	expect_result(crew_run_some(crew, 1u << 1, pass_one), -ECONNRESET);
	expect_blamed(crew, 1u << 1, 2, -ECONNRESET);
	test_assert_sentence("rank 0 of 3 says that rank 2 is gone");
}

static int pass_by_another(struct crew_member *member)
{
	enum pier_barrier_algorithm mine = member->rank == 2 ? PIER_BARRIER_BINARY_TREE
							     : PIER_BARRIER_CENTRAL;

	return pier_group_barrier_of(member->group, mine, NULL, 0, CREW_PATIENT);
}

static void ranks_must_agree(void **state)
{
	struct crew *crew = connected(state, 3);

	expect_result(crew_run(crew, pass_by_another), -EPROTO);
	crew->timeout_ms = 0;
	expect_blamed(crew, 0x3, 2, -EPROTO);
	assert_non_null(
		strstr(crew->members[0].sentence, "rank 2 of 3 is in another barrier"));
}

static int pass_with_others(struct crew_member *member)
{
	static const uint32_t all[] = { 0, 1, 2 }, two[] = { 0, 2 };

	return member->rank == 2
		       ? pier_group_barrier_of(member->group, 0, two, 2, CREW_PATIENT)
		       : pier_group_barrier_of(member->group, 0, all, 3, CREW_PATIENT);
}

static void ranks_must_agree_on_ranks(void **state)
{
	struct crew *crew = connected(state, 3);

	expect_result(crew_run(crew, pass_with_others), -EPROTO);
	for (uint32_t rank = 0; rank < 3; rank++)
		assert_int_equal(crew->members[rank].error, -EPROTO);
}

/* Messages that rank 1 should not send. */
static void rejects_hostile_notices(void **state)
{
	static const struct {
		uint32_t immediate;
		int error, culprit;
	} notices[] = {
		{ 0, -EPROTO, 1 },
		{ UINT32_MAX, -EPROTO, 1 },
		{ (uint32_t)PIER_GROUP_MESSAGE_HERE << PIER_GROUP_MESSAGE_BITS, -EPROTO,
		  1 },
		/* Rank 2 among 2, and an unknown reason. */
		{ (uint32_t)PIER_GROUP_MESSAGE_FAILED << PIER_GROUP_MESSAGE_BITS |
			  1 << 24 | 2,
		  -EPROTO, 1 },
		{ (uint32_t)PIER_GROUP_MESSAGE_FAILED << PIER_GROUP_MESSAGE_BITS |
			  15 << 24,
		  -EPROTO, 1 },
		{ (uint32_t)PIER_GROUP_MESSAGE_FAILED << PIER_GROUP_MESSAGE_BITS |
			  1 << 24,
		  -ETIMEDOUT, 0 },
	};

	for (size_t i = 0; i < sizeof(notices) / sizeof(notices[0]); i++) {
		struct crew *crew = connected(state, 2);
		struct pier_group *group = crew->members[0].group;
		struct pier_channel *liar = crew->members[1].group->members[0].control;

		expect_ok(test_channel_send_imm(liar, NULL, 0, notices[i].immediate,
						CREW_PATIENT));
		expect_result(pier_group_barrier(group, CREW_PATIENT), notices[i].error);
		assert_int_equal(pier_group_failed_rank(group), notices[i].culprit);
		disconnect(state);
	}
}

static void send_without_immediate_is_no_notice(void **state)
{
	struct crew *crew = connected(state, 2);
	struct pier_group *group = crew->members[0].group;

	expect_ok(pier_channel_send(crew->members[1].group->members[0].control, NULL, 0,
				    CREW_PATIENT));
	expect_result(pier_group_barrier(group, CREW_PATIENT), -EPROTO);
	test_assert_sentence("rank 1 of 2 sent something other than a barrier message");
}

static void invalid_calls_break_nothing(void **state)
{
	static const uint32_t none[] = { 1 }, twice[] = { 0, 0 }, falling[] = { 1, 0 },
			      beyond[] = { 0, 3 };
	struct crew *crew = connected(state, 3);
	struct pier_group *group = crew->members[0].group;

	expect_result(pier_group_barrier(group, -2), -EINVAL);
	expect_result(
		pier_group_barrier_of(group, (enum pier_barrier_algorithm)4, NULL, 0, 0),
		-EINVAL);
	test_assert_sentence("algorithm 4 is unknown");
	expect_result(pier_group_barrier_of(group, 0, none, 1, 0), -EINVAL);
	test_assert_sentence("this rank, 0, is not among");
	expect_result(pier_group_barrier_of(group, 0, none, 0, 0), -EINVAL);
	expect_result(pier_group_barrier_of(group, 0, twice, 2, 0), -EINVAL);
	test_assert_sentence("rank 0 follows rank 0");
	expect_result(pier_group_barrier_of(group, 0, falling, 2, 0), -EINVAL);
	expect_result(pier_group_barrier_of(group, 0, beyond, 2, 0), -EINVAL);
	test_assert_sentence("no rank 3 among 3");
	assert_int_equal(pier_group_failed_rank(group), -1);
	algorithm = PIER_BARRIER_CENTRAL;
	expect_ok(crew_run(crew, pass_one));
}

#define fixture_test(body) cmocka_unit_test_setup_teardown(body, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		fixture_test(no_rank_passes_before_all_have_come),
		fixture_test(random_sets_and_algorithms_work),
		fixture_test(rank_may_leave_right_after_a_barrier),
		fixture_test(waiting_ranks_sleep),
		fixture_test(first_rank_names_the_missing_rank),
		fixture_test(all_missing_ranks_are_named),
		fixture_test(no_rank_waits_beyond_its_deadline),
		fixture_test(every_rank_names_a_dead_member),
		fixture_test(late_rank_gets_the_report_of_a_rank_that_left),
		fixture_test(ranks_must_agree),
		fixture_test(ranks_must_agree_on_ranks),
		fixture_test(rejects_hostile_notices),
		fixture_test(send_without_immediate_is_no_notice),
		fixture_test(invalid_calls_break_nothing),
	};

	manual_clock_run();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
