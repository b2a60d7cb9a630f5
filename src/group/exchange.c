/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "channel/status.h"
#include "channel/wait.h"
#include "group.h"
#include "core/deadline.h"
#include "core/error.h"

/* The failed requests of a call, whose ranks are marked. */
struct failures {
	uint32_t count;
	uint32_t first; /* the index of the first one, if there is one */
	uint32_t rank;	/* of that one, like the next two */
	int error;
	char cause[256]; /* the error sentence */
};

static void note_failure(struct pier_group *group, struct failures *failures,
			 uint32_t index, uint32_t rank, int error)
{
	group->members[rank].marked = true;
	if (failures->count++ > 0 && index > failures->first)
		return;
	failures->first = index;
	failures->rank = rank;
	failures->error = error;
	snprintf(failures->cause, sizeof(failures->cause), "%s", pier_error_message());
}

/* Returns 0, or the first error with a sentence about all. */
static int report_failures(struct pier_group *group, const struct failures *failures,
			   uint32_t requests)
{
	char ranks[128];
	uint32_t count;

	if (failures->count == 0)
		return 0;
	count = pier_group_print_marked(group, ranks, sizeof(ranks));
	return pier_fail(-failures->error,
			 "%u of %u requests of a group failed, of rank%s %s; rank %u: %s",
			 failures->count, requests, count == 1 ? "" : "s", ranks,
			 failures->rank, failures->cause);
}

static int check_rank(const struct pier_group *group, uint32_t index, uint32_t rank)
{
	if (rank < group->size)
		return 0;
	return pier_fail(EINVAL, "request %u of a group: there is no rank %u among %u",
			 index, rank, group->size);
}

/* One request of an exchange. */
struct part {
	const struct pier_group_request *request;
	enum {
		WAITING, /* for room in the queue */
		POSTED,
		OVER
	} state;
	struct pier_work work;
	struct pier_result result;
};

struct exchange {
	struct part *parts;
	uint32_t count;
	uint32_t finished; /* all parts before this one are over */
	struct failures failures;
};

static void end_part(struct pier_group *group, struct exchange *exchange,
		     struct part *part, int error)
{
	part->state = OVER;
	part->result.error = error;
	if (error)
		note_failure(group, &exchange->failures,
			     (uint32_t)(part - exchange->parts), part->request->rank,
			     error);
}

/* If a queue is full, all further requests for it wait too, which keeps their order. */
static void try_to_post(struct pier_group *group, struct exchange *exchange,
			struct part *part)
{
	const struct pier_request *request = &part->request->request;
	struct pier_group_member *member = &group->members[part->request->rank];
	uint64_t *full = &member->full[request->opcode == PIER_OP_RECV];
	int error;

	if (*full == group->look)
		return;
	part->result.opcode = request->opcode;
	part->result.context = request->context;
	error = pier_channel_post_request(member->channel, request, &part->work);
	if (error == -EAGAIN)
		*full = group->look;
	else if (error)
		end_part(group, exchange, part, error);
	else
		part->state = POSTED;
}

static void try_to_finish(struct pier_group *group, struct exchange *exchange,
			  struct part *part)
{
	struct pier_group_member *member = &group->members[part->request->rank];
	int done = pier_work_poll(member->channel, part->work, &part->result);

	if (done == 0)
		return;
	/* If polling fails, stop what is posted. */
	if (done < 0)
		done = pier_wait_or_stop(member->channel, part->work, 0, 0,
					 &part->result);
	end_part(group, exchange, part, done < 0 ? done : part->result.error);
}

static int look_at_parts(struct pier_group *group, void *subject)
{
	struct exchange *exchange = subject;

	for (uint32_t i = exchange->finished; i < exchange->count; i++) {
		struct part *part = &exchange->parts[i];
		uint32_t rank = part->request->rank;

		if (part->state == WAITING)
			try_to_post(group, exchange, part);
		if (part->state == POSTED)
			try_to_finish(group, exchange, part);
		if (part->state != OVER)
			pier_group_watch(group, rank, group->members[rank].channel);
		else if (i == exchange->finished)
			exchange->finished++;
	}
	return exchange->finished == exchange->count;
}

/* The time is up: nothing of this part may continue after the call. */
static void give_up(struct pier_group *group, struct exchange *exchange,
		    struct part *part, int error, int64_t deadline, int timeout_ms)
{
	struct pier_group_member *member = &group->members[part->request->rank];

	if (part->state == POSTED)
		error = pier_wait_or_stop(member->channel, part->work, deadline,
					  timeout_ms, &part->result);
	else if (error == -ETIMEDOUT)
		pier_fail(ETIMEDOUT,
			  "%s was not posted within %d ms: the queue stayed full",
			  pier_opcode_name(part->request->request.opcode), timeout_ms);
	end_part(group, exchange, part, error);
}

static int run_exchange(struct pier_group *group, struct exchange *exchange,
			int timeout_ms)
{
	int64_t deadline = pier_deadline(timeout_ms);
	int error = pier_group_wait_until(group, look_at_parts, exchange, deadline);

	for (uint32_t i = exchange->finished; i < exchange->count && error; i++) {
		if (exchange->parts[i].state != OVER)
			give_up(group, exchange, &exchange->parts[i], error, deadline,
				timeout_ms);
	}
	return report_failures(group, &exchange->failures, exchange->count);
}

int pier_group_exchange(struct pier_group *group,
			const struct pier_group_request *requests, uint32_t count,
			int timeout_ms, struct pier_result *ret_results)
{
	PIER_REFUSE_NULL(group);
	PIER_REFUSE_NULL_ARRAY(requests, count);
	struct exchange exchange = { .count = count };
	int error = pier_check_group(group, PIER_GROUP_CONNECTED, timeout_ms,
				     &timeout_ms);

	for (uint32_t i = 0; i < count && !error; i++)
		error = check_rank(group, i, requests[i].rank);
	if (error || count == 0)
		return error;
	exchange.parts = calloc(count, sizeof(*exchange.parts));
	if (!exchange.parts)
		return pier_fail(ENOMEM, "no memory for %u requests of a group", count);
	for (uint32_t i = 0; i < count; i++)
		exchange.parts[i].request = &requests[i];
	error = run_exchange(group, &exchange, timeout_ms);
	for (uint32_t i = 0; i < count && ret_results; i++)
		ret_results[i] = exchange.parts[i].result;
	free(exchange.parts);
	return error;
}

/*
 * One channel after another, because only the last completion ends the wait.
 *
 * Returns 0 when all have completed; -ETIMEDOUT, without a sentence if timeout_ms is 0;
 * or another error of waiting.
 */
static int wait_for_works(struct pier_group *group, const struct pier_group_work *works,
			  uint32_t count, int timeout_ms)
{
	int64_t deadline = pier_deadline(timeout_ms);
	uint32_t late = 0, rank_count;
	char ranks[128];
	int error = 0;

	for (uint32_t i = 0; i < count; i++) {
		struct pier_group_member *member = &group->members[works[i].rank];

		error = pier_wait_for_work(member->channel, works[i].work, deadline);
		/* A caller that only asks needs no list of ranks. */
		if (error && (error != -ETIMEDOUT || timeout_ms == 0))
			break;
		member->marked |= error != 0;
		late += error != 0;
	}
	if (late == 0)
		return error;
	rank_count = pier_group_print_marked(group, ranks, sizeof(ranks));
	if (error && error != -ETIMEDOUT)
		return error;
	return pier_fail(ETIMEDOUT,
			 "%u of %u requests of a group did not complete within %d ms, of "
			 "rank%s %s",
			 late, count, timeout_ms, rank_count == 1 ? "" : "s", ranks);
}

int pier_group_wait(struct pier_group *group, const struct pier_group_work *works,
		    uint32_t count, int timeout_ms, struct pier_result *ret_results)
{
	PIER_REFUSE_NULL(group);
	PIER_REFUSE_NULL_ARRAY(works, count);
	PIER_REFUSE_NULL_ARRAY(ret_results, count);
	struct failures failures = { 0 };
	int error = pier_check_group(group, PIER_GROUP_CONNECTED, timeout_ms,
				     &timeout_ms);

	for (uint32_t i = 0; i < count && !error; i++)
		error = check_rank(group, i, works[i].rank);
	if (!error)
		error = wait_for_works(group, works, count, timeout_ms);
	if (error)
		return error == -ETIMEDOUT && timeout_ms == 0 ? 0 : error;
	for (uint32_t i = 0; i < count; i++) {
		struct pier_result *result = &ret_results[i];
		int done;

		*result = (struct pier_result){ 0 };
		done = pier_work_poll(group->members[works[i].rank].channel,
				      works[i].work, result);
		if (done < 0)
			result->error = done;
		if (result->error)
			note_failure(group, &failures, i, works[i].rank, result->error);
	}
	report_failures(group, &failures, count);
	return 1;
}
