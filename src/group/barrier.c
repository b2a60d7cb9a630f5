/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "message.h"
#include "core/deadline.h"
#include "core/error.h"

/*
 * In each algorithm a rank sends another rank at most one barrier message per barrier.
 * A rank that cannot continue sends its failure in place of the messages that it still
 * owes. The failure thus reaches every rank that waits for it, directly or through
 * others, and no rank needs to watch more channels than those it waits for.
 */

/* One barrier, as one of its ranks sees it. */
struct round {
	const uint32_t *ranks; /* NULL: all */
	uint32_t count;
	uint32_t index; /* of this rank among them */
	uint32_t check;
	int64_t deadline;
	int timeout_ms;
};

static uint32_t rank_at(const struct round *round, uint32_t index)
{
	return round->ranks ? round->ranks[index] : index;
}

static int send_to(struct pier_group *group, const struct round *round, uint32_t index)
{
	return pier_group_send_message(group, rank_at(round, index), round->check);
}

static void expect_from(struct pier_group *group, const struct round *round,
			uint32_t index)
{
	pier_group_expect_message(group, rank_at(round, index));
}

static int await_all(struct pier_group *group, const struct round *round)
{
	return pier_group_await_messages(group, round->check, round->deadline,
					 round->timeout_ms);
}

static int await_from(struct pier_group *group, const struct round *round, uint32_t index)
{
	expect_from(group, round, index);
	return await_all(group, round);
}

static int run_central(struct pier_group *group, const struct round *round)
{
	int error;

	if (round->index > 0) {
		error = send_to(group, round, 0);
		return error ? error : await_from(group, round, 0);
	}
	for (uint32_t i = 1; i < round->count; i++)
		expect_from(group, round, i);
	error = await_all(group, round);
	for (uint32_t i = 1; i < round->count && !error; i++)
		error = send_to(group, round, i);
	return error;
}

static int run_binary_tree(struct pier_group *group, const struct round *round)
{
	uint32_t first = 2 * round->index + 1, parent = (round->index - 1) / 2;
	uint32_t children = first >= round->count ? 0 : round->count - first;
	int error;

	if (children > 2)
		children = 2;
	for (uint32_t i = 0; i < children; i++)
		expect_from(group, round, first + i);
	error = await_all(group, round);
	if (!error && round->index > 0)
		error = send_to(group, round, parent);
	if (!error && round->index > 0)
		error = await_from(group, round, parent);
	for (uint32_t i = 0; i < children && !error; i++)
		error = send_to(group, round, first + i);
	return error;
}

static int run_dissemination(struct pier_group *group, const struct round *round)
{
	int error = 0;

	for (uint32_t distance = 1; distance < round->count && !error; distance *= 2) {
		error = send_to(group, round, (round->index + distance) % round->count);
		if (!error)
			error = await_from(group, round,
					   (round->index + round->count - distance) %
						   round->count);
	}
	return error;
}

static int (*const algorithms[])(struct pier_group *, const struct round *) = {
	[PIER_BARRIER_CENTRAL] = run_central,
	[PIER_BARRIER_BINARY_TREE] = run_binary_tree,
	[PIER_BARRIER_DISSEMINATION] = run_dissemination,
};

/* FNV-1a over whole words. Different barriers hardly ever have the same check. */
static uint32_t check_of(const struct round *round, enum pier_barrier_algorithm algorithm)
{
	uint64_t hash = 0xcbf29ce484222325;

	hash = (hash ^ (uint32_t)algorithm) * 0x100000001b3;
	for (uint32_t i = 0; i < round->count; i++)
		hash = (hash ^ rank_at(round, i)) * 0x100000001b3;
	return (uint32_t)(hash >> 32);
}

/* Set `index`. */
static int check_ranks(const struct pier_group *group, struct round *round)
{
	bool found = false;

	for (uint32_t i = 0; i < round->count; i++) {
		uint32_t rank = rank_at(round, i);

		if (rank >= group->size)
			return pier_fail(EINVAL, "barrier: there is no rank %u among %u",
					 rank, group->size);
		if (i > 0 && rank <= rank_at(round, i - 1))
			return pier_fail(EINVAL,
					 "barrier: rank %u follows rank %u; ranks must "
					 "be ascending and unique",
					 rank, rank_at(round, i - 1));
		if (rank == group->rank) {
			found = true;
			round->index = i;
		}
	}
	return found ? 0
		     : pier_fail(EINVAL, "barrier: this rank, %u, is not among its ranks",
				 group->rank);
}

static int check_algorithm(enum pier_barrier_algorithm algorithm)
{
	if (algorithm >= PIER_BARRIER_CENTRAL && algorithm <= PIER_BARRIER_DISSEMINATION)
		return 0;
	return pier_fail(EINVAL, "barrier: algorithm %d is unknown", (int)algorithm);
}

/* Finish what an earlier barrier was still sending when its time was up. */
static int finish_last_barrier(struct pier_group *group, const struct round *round)
{
	pier_group_finish_sending(group, round->deadline);
	if (group->sending_count == 0)
		return 0;
	return pier_group_break(
		group, group->sending[0], ETIMEDOUT,
		"rank %u of %u did not receive the last barrier message within %d ms",
		group->sending[0], group->size, round->timeout_ms);
}

int pier_group_barrier_of(struct pier_group *group, enum pier_barrier_algorithm algorithm,
			  const uint32_t *ranks, uint32_t count, int timeout_ms)
{
	struct round round = { .ranks = ranks, .count = ranks ? count : group->size };
	int error = pier_check_group(group, timeout_ms, &round.timeout_ms);

	if (!algorithm)
		algorithm = group->barrier;
	if (!error)
		error = check_algorithm(algorithm);
	if (!error)
		error = check_ranks(group, &round);
	if (error)
		return error;
	if (group->broken)
		return pier_fail(EPIPE, "a barrier of the group failed before: %s",
				 group->cause);
	round.check = check_of(&round, algorithm);
	round.deadline = pier_deadline(round.timeout_ms);
	error = finish_last_barrier(group, &round);
	if (!error)
		error = algorithms[algorithm](group, &round);
	/*
	 * All ranks have come. A rank that the last messages do not reach reports that
	 * itself.
	 */
	if (!error)
		pier_group_finish_sending(group, round.deadline);
	else
		pier_group_send_failure(group);
	return error;
}

int pier_group_barrier(struct pier_group *group, int timeout_ms)
{
	return pier_group_barrier_of(group, group->barrier, NULL, 0, timeout_ms);
}

int pier_group_failed_rank(const struct pier_group *group)
{
	return group->failed_rank;
}
