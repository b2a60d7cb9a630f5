/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <pier/post.h>

#include "channel/status.h"
#include "channel/wait.h"
#include "group.h"
#include "core/deadline.h"
#include "core/error.h"

/* One request of many. */
struct part {
	struct pier_group_request request;
	enum {
		WAITING,
		POSTED,
		OVER
	} state; /* WAITING is for room in the queue */
	struct pier_work work;
	struct pier_result result;
};

/* All requests of a call. */
struct run {
	struct part *parts;
	uint32_t count;
	uint32_t failed;   /* the number of failed ones */
	uint32_t first;	   /* the index of the first failed one */
	char cause[256];   /* the error sentence of that one */
	uint32_t finished; /* all parts before this one are over */
};

static int start_run(struct run *run, uint32_t count)
{
	*run = (struct run){ .count = count, .first = count };
	run->parts = calloc(count ? count : 1, sizeof(*run->parts));
	return run->parts
		       ? 0
		       : pier_fail(ENOMEM, "no memory for %u requests of a group", count);
}

static void end_part(struct run *run, struct part *part, int error)
{
	uint32_t index = (uint32_t)(part - run->parts);

	part->state = OVER;
	part->result.error = error;
	if (!error)
		return;
	run->failed++;
	if (index < run->first) {
		run->first = index;
		snprintf(run->cause, sizeof(run->cause), "%s", pier_error_message());
	}
}

static int post_with_elements(struct pier_channel *channel,
			      const struct pier_group_request *request,
			      struct pier_work *ret_work)
{
	struct pier_request posted = {
		.opcode = request->opcode,
		.flags = request->has_immediate && request->opcode != PIER_OP_READ
				 ? PIER_POST_IMMEDIATE
				 : 0,
		.gather = request->gather,
		.num_sge = request->num_sge,
		.immediate = request->immediate,
		.remote = request->remote,
	};

	if (request->opcode == PIER_OP_RECV)
		return pier_channel_post_recv(channel, request->scatter, request->num_sge,
					      ret_work);
	return pier_channel_post_request(channel, &posted, ret_work);
}

/* If a queue is full, all further requests for it wait too, which keeps their order. */
static void try_to_post(struct pier_group *group, struct run *run, struct part *part)
{
	struct pier_group_member *member = &group->members[part->request.rank];
	uint64_t *full = &member->full[part->request.opcode == PIER_OP_RECV];
	int error;

	if (*full == group->look)
		return;
	part->result.opcode = part->request.opcode;
	error = post_with_elements(member->channel, &part->request, &part->work);
	if (error == -EAGAIN)
		*full = group->look;
	else if (error)
		end_part(run, part, error);
	else
		part->state = POSTED;
}

static void try_to_finish(struct pier_group *group, struct run *run, struct part *part)
{
	struct pier_group_member *member = &group->members[part->request.rank];
	int done = pier_work_poll(member->channel, part->work, &part->result);

	if (done == 0)
		return;
	/* If polling fails, stop what is posted. */
	if (done < 0 && done != -ESTALE)
		done = pier_wait_or_stop(member->channel, part->work, 0, 0,
					 &part->result);
	end_part(run, part, done < 0 ? done : part->result.error);
}

static void watch_rank(struct pier_group *group, uint32_t rank)
{
	struct pier_group_member *member = &group->members[rank];

	if (member->watched == group->look)
		return;
	member->watched = group->look;
	pier_group_watch(group, member->channel);
}

static int look_at_parts(struct pier_group *group, void *subject)
{
	struct run *run = subject;

	for (uint32_t i = run->finished; i < run->count; i++) {
		struct part *part = &run->parts[i];

		if (part->state == WAITING)
			try_to_post(group, run, part);
		if (part->state == POSTED)
			try_to_finish(group, run, part);
		if (part->state != OVER)
			watch_rank(group, part->request.rank);
		else if (i == run->finished)
			run->finished++;
	}
	return run->finished == run->count;
}

/* The time is up: nothing of this part may continue after the call. */
static void give_up(struct pier_group *group, struct run *run, struct part *part,
		    int error, int64_t deadline, int timeout_ms)
{
	struct pier_group_member *member = &group->members[part->request.rank];

	if (part->state == POSTED)
		error = pier_wait_or_stop(member->channel, part->work, deadline,
					  timeout_ms, &part->result);
	else if (error == -ETIMEDOUT)
		pier_fail(ETIMEDOUT,
			  "%s was not posted within %d ms: the queue stayed full",
			  pier_opcode_name(part->request.opcode), timeout_ms);
	end_part(run, part, error);
}

static bool failed_before(const struct run *run, uint32_t index)
{
	for (uint32_t i = run->first; i < index; i++) {
		if (run->parts[i].result.error &&
		    run->parts[i].request.rank == run->parts[index].request.rank)
			return true;
	}
	return false;
}

/*
 * Print the ranks as "3, 5", each once; the first ones if there are many. Returns their
 * number.
 */
static uint32_t print_failed(const struct run *run, char *ret_text, size_t size)
{
	uint32_t count = 0;
	size_t used = 0;

	for (uint32_t i = run->first; i < run->count && used + 32 < size; i++) {
		if (!run->parts[i].result.error || failed_before(run, i))
			continue;
		used += (size_t)snprintf(ret_text + used, size - used, "%s%u",
					 count++ > 0 ? ", " : "",
					 run->parts[i].request.rank);
	}
	if (used + 32 >= size)
		snprintf(ret_text + used, size - used, " and more");
	return count;
}

static int report_run(const struct run *run, struct pier_result *ret_results)
{
	char ranks[128];
	uint32_t count;

	for (uint32_t i = 0; i < run->count && ret_results; i++)
		ret_results[i] = run->parts[i].result;
	if (run->failed == 0)
		return 0;
	count = print_failed(run, ranks, sizeof(ranks));
	return pier_fail(-run->parts[run->first].result.error,
			 "%u of %u requests of a group failed, of rank%s %s; rank %u: %s",
			 run->failed, run->count, count == 1 ? "" : "s", ranks,
			 run->parts[run->first].request.rank, run->cause);
}

/* Frees the parts. */
static int finish_run(struct pier_group *group, struct run *run, int timeout_ms,
		      struct pier_result *ret_results)
{
	int64_t deadline = pier_deadline(timeout_ms);
	int error = pier_group_wait_until(group, look_at_parts, run, deadline);

	for (uint32_t i = run->finished; i < run->count && error; i++) {
		if (run->parts[i].state != OVER)
			give_up(group, run, &run->parts[i], error, deadline, timeout_ms);
	}
	error = report_run(run, ret_results);
	free(run->parts);
	return error;
}

static int check_rank(const struct pier_group *group, uint32_t index, uint32_t rank)
{
	if (rank < group->size)
		return 0;
	return pier_fail(EINVAL, "request %u of a group: there is no rank %u among %u",
			 index, rank, group->size);
}

static int check_opcode(uint32_t index, enum pier_opcode opcode)
{
	if (opcode == PIER_OP_SEND || opcode == PIER_OP_WRITE || opcode == PIER_OP_READ ||
	    opcode == PIER_OP_RECV)
		return 0;
	return pier_fail(EINVAL,
			 "request %u of a group: opcode %d is not a send, write, read "
			 "or receive",
			 index, (int)opcode);
}

int pier_group_exchange(struct pier_group *group,
			const struct pier_group_request *requests, uint32_t count,
			int timeout_ms, struct pier_result *ret_results)
{
	struct run run;
	int error = pier_check_group(group, timeout_ms, &timeout_ms);

	if (!error)
		error = pier_check_array(requests, count, "requests");
	if (!error)
		error = start_run(&run, count);
	if (error)
		return error;
	for (uint32_t i = 0; i < count && !error; i++) {
		run.parts[i].request = requests[i];
		error = check_rank(group, i, requests[i].rank);
		if (!error)
			error = check_opcode(i, requests[i].opcode);
	}
	if (!error)
		return finish_run(group, &run, timeout_ms, ret_results);
	free(run.parts);
	return error;
}

int pier_group_wait(struct pier_group *group, const struct pier_group_work *works,
		    uint32_t count, int timeout_ms, struct pier_result *ret_results)
{
	struct run run;
	int error = pier_check_group(group, timeout_ms, &timeout_ms);

	if (!error)
		error = pier_check_array(works, count, "works");
	if (!error)
		error = start_run(&run, count);
	if (error)
		return error;
	for (uint32_t i = 0; i < count && !error; i++) {
		run.parts[i] = (struct part){ .request = { .rank = works[i].rank },
					      .state = POSTED,
					      .work = works[i].work };
		error = check_rank(group, i, works[i].rank);
	}
	if (!error)
		return finish_run(group, &run, timeout_ms, ret_results);
	free(run.parts);
	return error;
}
