/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "blob.h"
#include "message.h"
#include "core/deadline.h"
#include "core/error.h"

enum {
	CONNECTED = 0xc0ec7, /* the check of the message that a rank is connected */
};

static int pack_for(struct pier_group *group, uint32_t rank, uint8_t *ret_wire)
{
	struct pier_group_blob blob = {
		.size = group->size,
		.from = group->rank,
		.to = rank,
	};
	struct pier_group_member *member = &group->members[rank];
	int error = pier_channel_endpoint(member->channel, &blob.channel);

	if (!error)
		error = pier_channel_endpoint(member->control, &blob.control);
	return error ? error : pier_group_pack_blob(&blob, ret_wire);
}

int pier_group_endpoints(struct pier_group *group, void *ret_blobs, size_t size)
{
	size_t needed = (size_t)group->size * PIER_GROUP_BLOB_SIZE;
	uint8_t *wire = ret_blobs;
	int error = pier_check_process(&group->object);

	if (error)
		return error;
	if (size < needed)
		return pier_fail(ENOSPC,
				 "blobs of a group of %u: %zu bytes are needed, %zu are "
				 "there",
				 group->size, needed, size);
	memset(wire + (size_t)group->rank * PIER_GROUP_BLOB_SIZE, 0,
	       PIER_GROUP_BLOB_SIZE);
	for (uint32_t rank = 0; rank < group->size && !error; rank++) {
		if (rank != group->rank)
			error = pack_for(group, rank,
					 wire + (size_t)rank * PIER_GROUP_BLOB_SIZE);
	}
	return error;
}

static int connect_to_itself(struct pier_group *group)
{
	struct pier_channel *channel = group->members[group->rank].channel;
	struct pier_endpoint endpoint;
	int error = pier_channel_endpoint(channel, &endpoint);

	return error ? error : pier_channel_connect(channel, &endpoint);
}

/* If the blobs were mixed up, each channel would connect to the wrong peer. */
static int check_blob(const struct pier_group *group, uint32_t rank,
		      const struct pier_group_blob *blob)
{
	if (blob->size != group->size)
		return pier_fail(EINVAL, "its blob is of a group of %u, not %u",
				 blob->size, group->size);
	if (blob->from != rank || blob->to != group->rank)
		return pier_fail(EINVAL,
				 "its blob is from rank %u for rank %u, not from %u for "
				 "%u",
				 blob->from, blob->to, rank, group->rank);
	return 0;
}

static int connect_to(struct pier_group *group, uint32_t rank, const uint8_t *wire)
{
	struct pier_group_member *member = &group->members[rank];
	struct pier_group_blob blob;
	int error = pier_group_unpack_blob(wire, &blob);

	if (!error)
		error = check_blob(group, rank, &blob);
	if (!error)
		error = pier_group_post_receives(member);
	/*
	 * The message of the other rank says that requests may come, so connect its
	 * channel last.
	 */
	if (!error)
		error = pier_channel_connect(member->channel, &blob.channel);
	return error ? error : pier_channel_connect(member->control, &blob.control);
}

/* Returns -error. Other ranks learn that the rank could not be connected. */
static int break_for_refused(struct pier_group *group, uint32_t rank, int error)
{
	char cause[256];

	snprintf(cause, sizeof(cause), "%s", pier_error_message());
	pier_group_break(group, rank, ECONNREFUSED, "connecting to rank %u of %u: %s",
			 rank, group->size, cause);
	return error;
}

/* Continue after a failure, so that the other ranks learn of it. */
static int connect_to_all(struct pier_group *group, const uint8_t *wire)
{
	int first = 0;

	for (uint32_t rank = 0; rank < group->size; rank++) {
		int error = rank == group->rank
				    ? connect_to_itself(group)
				    : connect_to(group, rank,
						 wire + (size_t)rank *
								 PIER_GROUP_BLOB_SIZE);

		if (error && !first)
			first = break_for_refused(group, rank, error);
	}
	return first;
}

static int wait_for_all(struct pier_group *group, int64_t deadline, int timeout_ms)
{
	int error = 0;

	for (uint32_t rank = 0; rank < group->size && !error; rank++) {
		if (rank == group->rank)
			continue;
		error = pier_group_send_message(group, rank, CONNECTED);
		pier_group_expect_message(group, rank);
	}
	if (!error)
		error = pier_group_await_messages(group, CONNECTED, deadline, timeout_ms);
	if (!error)
		pier_group_finish_sending(group, deadline);
	return error;
}

int pier_group_connect(struct pier_group *group, const void *blobs, size_t size,
		       int timeout_ms)
{
	int error = pier_check_unconnected_group(group, timeout_ms, &timeout_ms);
	int64_t deadline;

	if (error)
		return error;
	if (size != (size_t)group->size * PIER_GROUP_BLOB_SIZE)
		return pier_fail(EMSGSIZE, "blobs of a group of %u: %zu bytes, not %zu",
				 group->size, size,
				 (size_t)group->size * PIER_GROUP_BLOB_SIZE);
	if (!blobs)
		return pier_check_given(blobs, "blobs");
	deadline = pier_deadline(timeout_ms);
	error = connect_to_all(group, blobs);
	if (!error)
		error = wait_for_all(group, deadline, timeout_ms);
	group->state = error ? PIER_GROUP_FAILED : PIER_GROUP_CONNECTED;
	if (!error)
		return 0;
	pier_group_send_failure(group);
	return pier_fail(-error, "%s", group->cause);
}
