/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "channel/posting.h"
#include "core/deadline.h"
#include "core/error.h"
#include "group.h"

/*
 * A barrier message is a send without bytes. Its immediate data is the kind of the
 * message and a value; for PIER_GROUP_MESSAGE_FAILED the value is a reason and the rank
 * that is responsible.
 */
enum {
	VALUE = (1 << PIER_GROUP_MESSAGE_BITS) - 1,
	RANK_BITS = 24,
	RANK = (1 << RANK_BITS) - 1,
	FAILURE_TIME_MS = 50, /* the time for telling other ranks of a failure */
	CONNECTED = 0xc0ec7,  /* the check of the message that a rank is connected */
};

_Static_assert(PIER_GROUP_MAX <= RANK, "a rank fits into a message");

/* The reason for which a member failed. The index into the table is transmitted. */
static const struct {
	int error;
	const char *says;
} reasons[] = {
	{ EPROTO, "is in another barrier" },
	{ ETIMEDOUT, "did not come in time" },
	{ ECONNRESET, "is gone" },
	{ ECONNREFUSED, "could not be connected" },
};

enum {
	REASONS = sizeof(reasons) / sizeof(reasons[0]),
	OTHER_REASON = 2, /* for any other error: its channel cannot be used */
};

static uint32_t reason_of(int error)
{
	for (uint32_t i = 0; i < REASONS; i++) {
		if (reasons[i].error == error)
			return i;
	}
	return OTHER_REASON;
}

static uint32_t message_of(enum pier_group_message_kind kind, uint32_t value)
{
	return (uint32_t)kind << PIER_GROUP_MESSAGE_BITS | (value & VALUE);
}

int pier_group_break(struct pier_group *group, uint32_t failed_rank, int error,
		     const char *format, ...)
{
	va_list arguments;

	group->broken = -error;
	group->failed_rank = (int)failed_rank;
	va_start(arguments, format);
	vsnprintf(group->cause, sizeof(group->cause), format, arguments);
	va_end(arguments);
	return pier_fail(error, "%s", group->cause);
}

/* A channel has failed: -ECONNRESET, with the sentence of the channel. */
static int break_for_gone(struct pier_group *group, uint32_t rank)
{
	return pier_group_break(group, rank, ECONNRESET, "rank %u of %u is gone: %s",
				rank, group->size, pier_error_message());
}

static int send_message(struct pier_group *group, uint32_t rank, uint32_t immediate)
{
	struct pier_group_member *member = &group->members[rank];
	int error = pier_post_immediate(member->control, PIER_OP_SEND, immediate,
					&member->message);

	if (error)
		return error;
	group->sending[group->sending_count++] = rank;
	return 0;
}

/*
 * Returns 1 if there is a message, 0 if not, or an error of the channel. Posts the
 * receive again. If that fails, the remaining receives report the reason.
 */
static int take_message(struct pier_group_member *member, struct pier_result *ret_result)
{
	struct pier_work *receive = &member->receives[member->next];
	int done = pier_work_poll(member->control, *receive, ret_result);

	if (done != 1)
		return done;
	if (ret_result->error)
		return ret_result->error;
	member->next = (member->next + 1) % PIER_GROUP_RECEIVES;
	pier_channel_post_recv(member->control, NULL, 0, receive);
	return 1;
}

/* The rank reports that it has failed. */
static int break_as_reported(struct pier_group *group, uint32_t rank, uint32_t value)
{
	uint32_t failed_rank = value & RANK, reason = value >> RANK_BITS;

	if (failed_rank >= group->size || reason >= REASONS)
		return pier_group_break(
			group, rank, EPROTO,
			"rank %u of %u sent a barrier message without a meaning: %#x",
			rank, group->size, value);
	return pier_group_break(group, failed_rank, reasons[reason].error,
				"rank %u of %u says that rank %u %s", rank, group->size,
				failed_rank, reasons[reason].says);
}

/* Check a message. Returns 0 if it is the expected one. */
static int check_message(struct pier_group *group, uint32_t rank,
			 const struct pier_result *result, uint32_t check)
{
	uint32_t kind = result->immediate >> PIER_GROUP_MESSAGE_BITS;
	uint32_t value = result->immediate & VALUE;

	if (!result->has_immediate ||
	    (kind != PIER_GROUP_MESSAGE_HERE && kind != PIER_GROUP_MESSAGE_FAILED))
		return pier_group_break(
			group, rank, EPROTO,
			"rank %u of %u sent something other than a barrier message", rank,
			group->size);
	if (kind == PIER_GROUP_MESSAGE_FAILED)
		return break_as_reported(group, rank, value);
	if (value != (check & VALUE))
		return pier_group_break(group, rank, EPROTO,
					"rank %u of %u is in another barrier: of another "
					"algorithm, or of other ranks",
					rank, group->size);
	return 0;
}

/*
 * A message could not be sent. A rank that failed and left may have reported its failure
 * before. That report, among the received messages, names the responsible rank.
 */
static int break_for_unreachable(struct pier_group *group, uint32_t rank, uint32_t check)
{
	struct pier_group_member *member = &group->members[rank];
	struct pier_result result;
	int error = 0;

	for (int i = 0; i < PIER_GROUP_RECEIVES && !error; i++) {
		if (take_message(member, &result) != 1)
			break;
		error = check_message(group, rank, &result, check);
	}
	return error ? error : break_for_gone(group, rank);
}

/* subject: the check. */
static int look_for_messages(struct pier_group *group, void *subject)
{
	const uint32_t *check = subject;
	uint32_t missing = 0;

	for (uint32_t i = 0; i < group->awaited_count; i++) {
		uint32_t rank = group->awaited[i];
		struct pier_group_member *member = &group->members[rank];
		struct pier_result result;
		int error = take_message(member, &result);

		if (error < 0)
			return break_for_gone(group, rank);
		if (error == 0) {
			group->awaited[missing++] = rank;
			pier_group_watch(group, rank, member->control);
			continue;
		}
		error = check_message(group, rank, &result, *check);
		if (error)
			return error;
	}
	group->awaited_count = missing;
	return missing == 0;
}

static int break_for_missing(struct pier_group *group, int timeout_ms)
{
	char ranks[128];

	for (uint32_t i = 0; i < group->awaited_count; i++)
		group->members[group->awaited[i]].marked = true;
	pier_group_print_marked(group, ranks, sizeof(ranks));
	return pier_group_break(group, group->awaited[0], ETIMEDOUT,
				"rank%s %s of %u did not come within %d ms",
				group->awaited_count == 1 ? "" : "s", ranks, group->size,
				timeout_ms);
}

static int look_for_sent(struct pier_group *group, void *subject)
{
	uint32_t missing = 0;

	(void)subject;
	for (uint32_t i = 0; i < group->sending_count; i++) {
		uint32_t rank = group->sending[i];
		struct pier_group_member *member = &group->members[rank];

		if (pier_work_poll(member->control, member->message, NULL) != 0)
			continue;
		group->sending[missing++] = rank;
		pier_group_watch(group, rank, member->control);
	}
	group->sending_count = missing;
	return missing == 0;
}

/*
 * Wait until the messages that were sent have arrived, their rank is gone, or the time
 * is up.
 */
static void finish_sending(struct pier_group *group, int64_t deadline)
{
	if (group->sending_count > 0)
		pier_group_wait_until(group, look_for_sent, NULL, deadline);
}

/* Forgets a message that is still on its way to the same rank: none follows this one. */
void pier_group_send_failure(struct pier_group *group)
{
	uint32_t value = reason_of(-group->broken) << RANK_BITS |
			 (uint32_t)group->failed_rank;

	group->sending_count = 0;
	for (uint32_t rank = 0; rank < group->size; rank++) {
		if (rank != group->rank)
			send_message(group, rank,
				     message_of(PIER_GROUP_MESSAGE_FAILED, value));
	}
	finish_sending(group, pier_deadline(FAILURE_TIME_MS));
	pier_fail(-group->broken, "%s", group->cause);
}

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

/* Send a message without waiting. If that fails, the group is broken by that rank. */
static int send_to(struct pier_group *group, const struct round *round, uint32_t index)
{
	uint32_t rank = rank_at(round, index);
	int error = send_message(group, rank,
				 message_of(PIER_GROUP_MESSAGE_HERE, round->check));

	return error ? break_for_unreachable(group, rank, round->check) : 0;
}

static void expect_from(struct pier_group *group, const struct round *round,
			uint32_t index)
{
	group->awaited[group->awaited_count++] = rank_at(round, index);
}

/*
 * Wait until each expected rank has sent its message; then none is expected. On failure
 * the group is broken.
 */
static int await_all(struct pier_group *group, const struct round *round)
{
	uint32_t check = round->check;
	int error = pier_group_wait_until(group, look_for_messages, &check,
					  round->deadline);

	if (error == -ETIMEDOUT && !group->broken)
		error = break_for_missing(group, round->timeout_ms);
	else if (error && !group->broken)
		/* Waiting itself failed, which is the fault of no other rank. */
		error = pier_group_break(group, group->rank, -error, "%s",
					 pier_error_message());
	group->awaited_count = 0;
	return error;
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
	finish_sending(group, round->deadline);
	if (group->sending_count == 0)
		return 0;
	return pier_group_break(
		group, group->sending[0], ETIMEDOUT,
		"rank %u of %u did not receive the last barrier message within %d ms",
		group->sending[0], group->size, round->timeout_ms);
}

int pier_group_confirm(struct pier_group *group, int64_t deadline, int timeout_ms)
{
	const struct round round = {
		.count = group->size,
		.check = CONNECTED,
		.deadline = deadline,
		.timeout_ms = timeout_ms,
	};
	int error = 0;

	for (uint32_t rank = 0; rank < group->size && !error; rank++) {
		if (rank == group->rank)
			continue;
		error = send_to(group, &round, rank);
		expect_from(group, &round, rank);
	}
	if (!error)
		error = await_all(group, &round);
	if (!error)
		finish_sending(group, deadline);
	return error;
}

int pier_group_barrier_of(struct pier_group *group, enum pier_barrier_algorithm algorithm,
			  const uint32_t *ranks, uint32_t count, int timeout_ms)
{
	PIER_REFUSE_NULL(group);
	struct round round = { .ranks = ranks, .count = ranks ? count : group->size };
	int error = pier_check_group(group, PIER_GROUP_CONNECTED, timeout_ms,
				     &round.timeout_ms);

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
		finish_sending(group, round.deadline);
	else
		pier_group_send_failure(group);
	return error;
}

int pier_group_barrier(struct pier_group *group, int timeout_ms)
{
	PIER_REFUSE_NULL(group);
	return pier_group_barrier_of(group, group->barrier, NULL, 0, timeout_ms);
}

int pier_group_failed_rank(const struct pier_group *group)
{
	PIER_REFUSE_NULL(group);
	return group->failed_rank;
}
