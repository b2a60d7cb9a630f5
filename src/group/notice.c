/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "group.h"
#include "core/deadline.h"
#include "core/error.h"

/*
 * A notice is a send of no bytes whose immediate data is the kind of the notice and a
 * value; of PIER_NOTICE_FAILED that is a reason and the rank that is to blame.
 */
enum {
	VALUE = (1 << PIER_NOTICE_BITS) - 1,
	RANK_BITS = 24,
	RANK = (1 << RANK_BITS) - 1,
	FAREWELL_MS = 50, /* in which others can be told of a failure */
};

_Static_assert(PIER_GROUP_MAX <= RANK, "a rank fits into a notice");

/* Why a member failed, as it says: index of the table, which is what travels. */
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
	OTHER_REASON = 2, /* its channel is of no use, whatever the error */
};

static uint32_t reason_of(int error)
{
	for (uint32_t i = 0; i < REASONS; i++) {
		if (reasons[i].error == error)
			return i;
	}
	return OTHER_REASON;
}

static uint32_t notice(enum pier_notice kind, uint32_t value)
{
	return (uint32_t)kind << PIER_NOTICE_BITS | (value & VALUE);
}

int pier_group_blame(struct pier_group *group, uint32_t culprit, int error,
		     const char *format, ...)
{
	va_list arguments;

	group->broken = -error;
	group->culprit = (int)culprit;
	va_start(arguments, format);
	vsnprintf(group->cause, sizeof(group->cause), format, arguments);
	va_end(arguments);
	return pier_fail(error, "%s", group->cause);
}

/* For a channel that failed: -ECONNRESET, with what the channel says. */
static int blame_gone(struct pier_group *group, uint32_t rank)
{
	char cause[256];

	snprintf(cause, sizeof(cause), "%s", pier_error_message());
	return pier_group_blame(group, rank, ECONNRESET, "rank %u of %u is gone: %s",
				rank, group->size, cause);
}

int pier_group_post_receives(struct pier_group_member *member)
{
	int error = 0;

	for (int i = 0; i < PIER_GROUP_RECEIVES && !error; i++)
		error = pier_post_recv(member->control, NULL, 0, &member->receives[i]);
	return error;
}

static int tell(struct pier_group *group, uint32_t rank, uint32_t immediate)
{
	struct pier_group_member *member = &group->members[rank];
	int error = pier_post_send_imm(member->control, NULL, 0, immediate,
				       &member->notice);

	if (error)
		return error;
	group->told[group->told_count++] = rank;
	return 0;
}

int pier_group_tell(struct pier_group *group, uint32_t rank, uint32_t check)
{
	int error = tell(group, rank, notice(PIER_NOTICE_HERE, check));

	return error ? blame_gone(group, rank) : 0;
}

void pier_group_expect(struct pier_group *group, uint32_t rank)
{
	group->awaited[group->awaited_count++] = rank;
}

/*
 * 1: there is a notice; 0: not yet; or an error of the channel. The receive is posted
 * anew; should that fail, the receives that are left tell why.
 */
static int take_notice(struct pier_group_member *member, struct pier_result *ret_result)
{
	struct pier_work *receive = &member->receives[member->next];
	int done = pier_work_poll(member->control, *receive, ret_result);

	if (done != 1)
		return done;
	if (ret_result->error)
		return ret_result->error;
	member->next = (member->next + 1) % PIER_GROUP_RECEIVES;
	pier_post_recv(member->control, NULL, 0, receive);
	return 1;
}

/* The rank says that it has failed. */
static int blame_as_told(struct pier_group *group, uint32_t rank, uint32_t value)
{
	uint32_t culprit = value & RANK, reason = value >> RANK_BITS;

	if (culprit >= group->size || reason >= REASONS)
		return pier_group_blame(
			group, rank, EPROTO,
			"rank %u of %u sent a barrier message without a meaning: %#x",
			rank, group->size, value);
	return pier_group_blame(group, culprit, reasons[reason].error,
				"rank %u of %u says that rank %u %s", rank, group->size,
				culprit, reasons[reason].says);
}

/* Of a notice that has come: 0 it is what was expected. */
static int judge_notice(struct pier_group *group, uint32_t rank,
			const struct pier_result *result, uint32_t check)
{
	uint32_t kind = result->immediate >> PIER_NOTICE_BITS;
	uint32_t value = result->immediate & VALUE;

	if (!result->has_immediate ||
	    (kind != PIER_NOTICE_HERE && kind != PIER_NOTICE_FAILED))
		return pier_group_blame(
			group, rank, EPROTO,
			"rank %u of %u sent something other than a barrier message", rank,
			group->size);
	if (kind == PIER_NOTICE_FAILED)
		return blame_as_told(group, rank, value);
	if (value != (check & VALUE))
		return pier_group_blame(group, rank, EPROTO,
					"rank %u of %u is in another barrier: of another "
					"algorithm, or of other ranks",
					rank, group->size);
	return 0;
}

/* subject: the check. */
static int look_for_notices(struct pier_group *group, void *subject)
{
	const uint32_t *check = subject;
	uint32_t missing = 0;

	for (uint32_t i = 0; i < group->awaited_count; i++) {
		uint32_t rank = group->awaited[i];
		struct pier_group_member *member = &group->members[rank];
		struct pier_result result;
		int error = take_notice(member, &result);

		if (error < 0)
			return blame_gone(group, rank);
		if (error == 0) {
			group->awaited[missing++] = rank;
			pier_group_watch(group, member->control);
			continue;
		}
		error = judge_notice(group, rank, &result, *check);
		if (error)
			return error;
	}
	group->awaited_count = missing;
	return missing == 0;
}

/* "1, 2 and 5"; where there are many, the first of them. */
static void print_awaited(const struct pier_group *group, char *ret_text, size_t size)
{
	uint32_t count = group->awaited_count;
	size_t used = 0;

	ret_text[0] = '\0';
	for (uint32_t i = 0; i < count && used + 32 < size; i++)
		used += (size_t)snprintf(ret_text + used, size - used, "%s%u",
					 i == 0		  ? ""
					 : i == count - 1 ? " and "
							  : ", ",
					 group->awaited[i]);
	if (used + 32 >= size)
		snprintf(ret_text + used, size - used, " and so on");
}

static int blame_missing(struct pier_group *group, int timeout_ms)
{
	char ranks[128];

	print_awaited(group, ranks, sizeof(ranks));
	return pier_group_blame(group, group->awaited[0], ETIMEDOUT,
				"rank%s %s of %u did not come within %d ms",
				group->awaited_count == 1 ? "" : "s", ranks, group->size,
				timeout_ms);
}

/* Waiting itself failed, which is nobody else's fault. */
static int blame_this_rank(struct pier_group *group, int error)
{
	char cause[256];

	snprintf(cause, sizeof(cause), "%s", pier_error_message());
	return pier_group_blame(group, group->rank, -error, "%s", cause);
}

int pier_group_await(struct pier_group *group, uint32_t check, int64_t deadline,
		     int timeout_ms)
{
	int error = pier_group_wait_until(group, look_for_notices, &check, deadline);

	if (error == -ETIMEDOUT && !group->broken)
		error = blame_missing(group, timeout_ms);
	else if (error && !group->broken)
		error = blame_this_rank(group, error);
	group->awaited_count = 0;
	return error;
}

static int look_for_telling(struct pier_group *group, void *subject)
{
	uint32_t missing = 0;

	(void)subject;
	for (uint32_t i = 0; i < group->told_count; i++) {
		uint32_t rank = group->told[i];
		struct pier_group_member *member = &group->members[rank];

		if (pier_work_poll(member->control, member->notice, NULL) != 0)
			continue;
		group->told[missing++] = rank;
		pier_group_watch(group, member->control);
	}
	group->told_count = missing;
	return missing == 0;
}

void pier_group_finish_telling(struct pier_group *group, int64_t deadline)
{
	if (group->told_count > 0)
		pier_group_wait_until(group, look_for_telling, NULL, deadline);
}

/*
 * A notice that is still on its way to the same rank is forgotten: nobody sends one
 * after this.
 */
void pier_group_tell_failure(struct pier_group *group)
{
	uint32_t value = reason_of(-group->broken) << RANK_BITS |
			 (uint32_t)group->culprit;

	group->told_count = 0;
	for (uint32_t rank = 0; rank < group->size; rank++) {
		if (rank != group->rank)
			tell(group, rank, notice(PIER_NOTICE_FAILED, value));
	}
	pier_group_finish_telling(group, pier_deadline(FAREWELL_MS));
	pier_fail(-group->broken, "%s", group->cause);
}
