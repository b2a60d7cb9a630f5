/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "channel/cq/cq.h"
#include "channel/create.h"
#include "channel/recv/srq_post.h"
#include "channel/setup/attr.h"
#include "channel/wait.h"
#include "core/caller.h"
#include "core/error.h"
#include "core/extensible.h"
#include "group.h"

enum {
	/*
	 * 4.096 us * 2^16 is 268 ms, for at least seven tries: the time by which
	 * members may differ when they call pier_group_connect().
	 */
	LEAST_TIMEOUT = 16,
	LEAST_RETRIES = 6,
};

PIER_ASSERT_NO_PADDING(group_attr, flags);

static int check_attr(uint32_t rank, uint32_t size, const struct pier_group_attr *attr)
{
	if (size < 1 || size > PIER_GROUP_MAX)
		return pier_fail(EINVAL, "a group of %u: there can be 1 to %d members",
				 size, PIER_GROUP_MAX);
	if (rank >= size)
		return pier_fail(EINVAL, "a group of %u: there is no rank %u", size,
				 rank);
	if (attr->barrier < PIER_BARRIER_CENTRAL ||
	    attr->barrier > PIER_BARRIER_DISSEMINATION)
		return pier_fail(EINVAL, "group attributes: barrier %d is unknown",
				 (int)attr->barrier);
	if (attr->flags)
		return pier_fail(EINVAL, "group attributes: flags %#x are unknown",
				 attr->flags);
	return 0;
}

static void describe_group(const struct pier_object *object, char *ret_text, size_t size)
{
	const struct pier_group *group = (const struct pier_group *)object;

	snprintf(ret_text, size, "group of %u, rank %u, on %s", group->size, group->rank,
		 group->pd->device->name);
}

static void free_group(struct pier_group *group)
{
	free(group->watch);
	free(group->fds);
	free(group->awaited);
	free(group->sending);
	free(group->cqs);
	free(group);
}

static struct pier_group *new_group(struct pier_pd *pd, uint32_t rank, uint32_t size)
{
	struct pier_group *group = calloc(1, sizeof(*group) +
						     size * sizeof(group->members[0]));

	if (!group)
		return NULL;
	group->object.describe = describe_group;
	group->pd = pd;
	group->rank = rank;
	group->size = size;
	group->failed_rank = -1;
	group->watch = calloc(size, sizeof(group->watch[0]));
	group->fds = calloc(size, sizeof(group->fds[0]));
	group->awaited = calloc(size, sizeof(group->awaited[0]));
	group->sending = calloc(size, sizeof(group->sending[0]));
	if (group->watch && group->fds && group->awaited && group->sending)
		return group;
	free_group(group);
	return NULL;
}

/* Barrier messages use the same path as requests, and give peers no rights. */
static struct pier_channel_attr control_attr(const struct pier_channel_attr *of_requests)
{
	struct pier_channel_attr attr = *of_requests;

	attr.max_send_wr = PIER_GROUP_SENDS;
	attr.max_recv_wr = PIER_GROUP_RECEIVES;
	attr.max_send_sge = attr.max_recv_sge = 1;
	attr.max_inline = 0;
	attr.srq = NULL;
	attr.max_rd_atomic = 0;
	attr.psn = PIER_UNSET;
	attr.access = 0;
	if (attr.timeout && attr.timeout < LEAST_TIMEOUT)
		attr.timeout = LEAST_TIMEOUT;
	if (attr.retry_count < LEAST_RETRIES)
		attr.retry_count = LEAST_RETRIES;
	return attr;
}

static int make_member(struct pier_group *group, uint32_t rank,
		       const struct pier_channel_attr *attr)
{
	struct pier_group_member *member = &group->members[rank];
	struct pier_channel_attr control;
	int error = pier_make_channel(group->pd, attr, &group->object, &member->channel);

	if (error || rank == group->rank)
		return error;
	control = control_attr(&member->channel->attr);
	error = pier_make_channel(group->pd, &control, &group->object, &member->control);
	if (!error)
		member->control->internal = true;
	return error;
}

/*
 * One completion queue for all channels, and so one fd, if the device has one that is
 * deep enough. The receives of a shared receive queue count once for each queue.
 */
static int plan_cqs(struct pier_group *group, const struct pier_channel_attr *attr,
		    uint32_t *ret_depth)
{
	struct pier_channel_attr control = control_attr(attr);
	uint64_t limit = (uint64_t)group->pd->device->limits.max_cqe;
	uint64_t shared = attr->srq ? attr->srq->max_wr : 0;
	uint64_t each = (uint64_t)pier_request_entries(attr) +
			pier_request_entries(&control);
	uint64_t members = shared + each <= limit ? (limit - shared) / each : 0;

	if (members == 0)
		return pier_fail(EINVAL,
				 "channel attributes: a rank needs a completion queue of "
				 "%" PRIu64 "; the device has %" PRIu64,
				 shared + each, limit);
	if (members > group->size)
		members = group->size;
	group->members_per_cq = (uint32_t)members;
	*ret_depth = (uint32_t)(shared + members * each);
	return 0;
}

static int make_cqs(struct pier_group *group, const struct pier_channel_attr *attr)
{
	struct pier_cq_attr cq_attr;
	uint32_t needed;
	int error;

	pier_cq_attr_init(&cq_attr);
	cq_attr.comp_vector = attr->comp_vector;
	error = plan_cqs(group, attr, &cq_attr.depth);
	if (error)
		return error;
	needed = (group->size - 1) / group->members_per_cq + 1;
	group->cqs = calloc(needed, sizeof(*group->cqs));
	if (!group->cqs)
		return pier_fail(ENOMEM, "no memory for a group of %u", group->size);
	for (; group->cq_count < needed && !error; group->cq_count += !error)
		error = pier_make_cq(group->pd, &cq_attr, &group->object,
				     &group->cqs[group->cq_count]);
	return error;
}

static int make_members(struct pier_group *group, const struct pier_channel_attr *given)
{
	struct pier_channel_attr attr;
	int error = pier_read_channel_attr(given, &group->pd->device->limits, &attr);

	if (!error)
		error = pier_check_channel_attr(&attr, &group->pd->device->limits);
	if (!error && !attr.cq)
		error = make_cqs(group, &attr);
	for (uint32_t rank = 0; rank < group->size && !error; rank++) {
		if (group->cqs)
			attr.cq = group->cqs[rank / group->members_per_cq];
		error = make_member(group, rank, &attr);
	}
	return error;
}

static int end_channel(struct pier_channel **channel)
{
	int error = *channel ? pier_end_channel(*channel) : 0;

	if (!error)
		*channel = NULL;
	return error;
}

/* Accepts half-built groups. After an error the remaining objects still exist. */
static int end_group(struct pier_group *group)
{
	int error = 0;

	for (uint32_t rank = 0; rank < group->size && !error; rank++) {
		error = end_channel(&group->members[rank].control);
		if (!error)
			error = end_channel(&group->members[rank].channel);
	}
	while (group->cq_count > 0 && !error) {
		error = pier_end_cq(group->cqs[group->cq_count - 1]);
		group->cq_count -= !error;
	}
	if (error)
		return error;
	pier_object_untrack(&group->object);
	atomic_fetch_sub(&group->pd->children, 1);
	free_group(group);
	return 0;
}

int pier_group_create(struct pier_pd *pd, uint32_t rank, uint32_t size,
		      const struct pier_group_attr *attr, struct pier_group **ret_group)
{
	PIER_REFUSE_NULL(pd, ret_group);
	PIER_ENTRY();
	struct pier_group_attr known;
	struct pier_group *group;
	int error = pier_check_process(&pd->object);

	if (!error)
		error = PIER_READ_ATTR("group attributes", group_attr, attr,
				       PIER_SIZE_UP_TO(group_attr, flags), &known);
	if (!error)
		error = check_attr(rank, size, &known);
	if (error)
		return error;
	group = new_group(pd, rank, size);
	if (!group)
		return pier_fail(ENOMEM, "no memory for a group of %u", size);
	group->barrier = known.barrier;
	atomic_fetch_add(&pd->children, 1);
	pier_object_track(&group->object, PIER_OBJECT_GROUP, &pd->object);
	error = make_members(group, known.channel);
	if (error) {
		error = pier_fail_because(-error, "making rank %u of a group of %u", rank,
					  size);
		end_group(group);
		return error;
	}
	*ret_group = group;
	return 0;
}

int pier_group_destroy(struct pier_group *group)
{
	int error = group ? pier_check_process(&group->object) : 0;

	return error || !group ? error : end_group(group);
}

int pier_check_group(const struct pier_group *group, enum pier_group_state state,
		     int timeout_ms, int *ret_timeout_ms)
{
	int error = pier_check_process(&group->object);

	if (!error)
		error = pier_channel_timeout(group->members[group->rank].channel,
					     timeout_ms, ret_timeout_ms);
	if (error || group->state == state)
		return error;
	if (state == PIER_GROUP_CONNECTED)
		return pier_fail(ENOTCONN, "the group is not connected%s%s",
				 group->broken ? ": " : "",
				 group->broken ? group->cause : "");
	return pier_fail(EISCONN, group->state == PIER_GROUP_CONNECTED
					  ? "the group is connected already"
					  : "the group failed to connect before, and can "
					    "only be destroyed");
}

struct pier_channel *pier_group_channel(const struct pier_group *group, uint32_t rank)
{
	PIER_REFUSE_NULL_AS(NULL, group);
	return rank < group->size ? group->members[rank].channel : NULL;
}

uint32_t pier_group_print_marked(struct pier_group *group, char *ret_text, size_t size)
{
	uint32_t count = 0;
	size_t used = 0;

	for (uint32_t rank = 0; rank < group->size; rank++) {
		if (!group->members[rank].marked)
			continue;
		group->members[rank].marked = false;
		if (used + 32 < size)
			used += (size_t)snprintf(ret_text + used, size - used, "%s%u",
						 count > 0 ? ", " : "", rank);
		else
			snprintf(ret_text + used, size - used, " and more");
		count++;
	}
	return count;
}

void pier_group_watch(struct pier_group *group, uint32_t rank,
		      struct pier_channel *channel)
{
	if (group->members[rank].watched == group->look)
		return;
	group->members[rank].watched = group->look;
	group->watch[group->watch_count++] = channel;
}

/* One wait of a group. */
struct group_wait {
	struct pier_group *group;
	pier_group_look *look;
	void *subject;
};

static int check_look(void *subject)
{
	const struct group_wait *wait = subject;

	wait->group->look++;
	wait->group->watch_count = 0;
	return wait->look(wait->group, wait->subject);
}

/* All channels at once, so that none uses up the time of the others. */
static int pass_watched(void *subject, struct pier_wait_pass *pass)
{
	const struct group_wait *wait = subject;
	int error = 0;

	for (uint32_t i = 0; i < wait->group->watch_count && !error; i++)
		error = pier_wait_pass_channel(pass, wait->group->watch[i]);
	return error;
}

int pier_group_wait_until(struct pier_group *group, pier_group_look *look, void *subject,
			  int64_t deadline)
{
	struct group_wait wait = { .group = group, .look = look, .subject = subject };
	const struct pier_wait_condition condition = {
		.check = check_look,
		.pass = pass_watched,
		.subject = &wait,
		.fds = group->fds,
	};

	return pier_wait_until(&condition, deadline);
}
