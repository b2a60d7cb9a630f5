/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "group.h"
#include "core/deadline.h"
#include "core/error.h"

/*
 * In each algorithm a rank sends another one at most one notice per barrier, and
 * whoever cannot go on sends that it failed in place of those that it still owes. So
 * whoever waits for somebody who waits for somebody who failed is told, and nobody needs
 * to watch more channels than those that it waits for.
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

static int tell(struct pier_group *group, const struct round *round, uint32_t index)
{
	return pier_group_tell(group, rank_at(round, index), round->check);
}

static void expect(struct pier_group *group, const struct round *round, uint32_t index)
{
	pier_group_expect(group, rank_at(round, index));
}

static int await(struct pier_group *group, const struct round *round)
{
	return pier_group_await(group, round->check, round->deadline, round->timeout_ms);
}

static int await_one(struct pier_group *group, const struct round *round, uint32_t index)
{
	expect(group, round, index);
	return await(group, round);
}

static int run_central(struct pier_group *group, const struct round *round)
{
	int error;

	if (round->index > 0) {
		error = tell(group, round, 0);
		return error ? error : await_one(group, round, 0);
	}
	for (uint32_t i = 1; i < round->count; i++)
		expect(group, round, i);
	error = await(group, round);
	for (uint32_t i = 1; i < round->count && !error; i++)
		error = tell(group, round, i);
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
		expect(group, round, first + i);
	error = await(group, round);
	if (!error && round->index > 0)
		error = tell(group, round, parent);
	if (!error && round->index > 0)
		error = await_one(group, round, parent);
	for (uint32_t i = 0; i < children && !error; i++)
		error = tell(group, round, first + i);
	return error;
}

static int run_dissemination(struct pier_group *group, const struct round *round)
{
	int error = 0;

	for (uint32_t distance = 1; distance < round->count && !error; distance *= 2) {
		error = tell(group, round, (round->index + distance) % round->count);
		if (!error)
			error = await_one(group, round,
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

/* FNV-1a, a word at a time: two barriers that differ are hardly ever taken for one. */
static uint32_t check_of(const struct round *round, enum pier_barrier_algorithm algorithm)
{
	uint64_t hash = 0xcbf29ce484222325;

	hash = (hash ^ (uint32_t)algorithm) * 0x100000001b3;
	for (uint32_t i = 0; i < round->count; i++)
		hash = (hash ^ rank_at(round, i)) * 0x100000001b3;
	return (uint32_t)(hash >> 32);
}

/* Fills in `index`. */
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

/* What an earlier barrier had sent when its time was up. */
static int finish_the_last(struct pier_group *group, const struct round *round)
{
	pier_group_finish_telling(group, round->deadline);
	if (group->told_count == 0)
		return 0;
	return pier_group_blame(
		group, group->told[0], ETIMEDOUT,
		"rank %u of %u did not receive the last barrier message within %d ms",
		group->told[0], group->size, round->timeout_ms);
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
	error = finish_the_last(group, &round);
	if (!error)
		error = algorithms[algorithm](group, &round);
	/* All have come; whom the last notices do not reach will say so by itself. */
	if (!error)
		pier_group_finish_telling(group, round.deadline);
	else
		pier_group_tell_failure(group);
	return error;
}

int pier_group_barrier(struct pier_group *group, int timeout_ms)
{
	return pier_group_barrier_of(group, group->barrier, NULL, 0, timeout_ms);
}

int pier_group_failed_rank(const struct pier_group *group)
{
	return group->culprit;
}
