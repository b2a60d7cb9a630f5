/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "channel/setup/connect.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/fd.h"
#include "core/sleep.h"
#include "core/wire.h"
#include "group.h"

/* The wire form: see docs/wire.md. */
enum {
	AT_MAGIC = 0,
	AT_VERSION = 4,
	AT_LENGTH = 6,
	AT_SIZE = 8,
	AT_FROM = 12,
	AT_TO = 16,
	AT_CHANNEL_LENGTH = 20,
	AT_CONTROL_LENGTH = 22,
	AT_CHANNEL = 24,
	AT_CONTROL = AT_CHANNEL + PIER_ENDPOINT_WIRE_MAX,
	WIRE_VERSION = 1,
};

static const uint8_t magic[4] = { 'P', 'I', 'E', 'G' };

_Static_assert((int)AT_CONTROL + PIER_ENDPOINT_WIRE_MAX == PIER_GROUP_BLOB_SIZE,
	       "two of the longest endpoints fit");

int pier_group_pack_blob(const struct pier_group_blob *blob,
			 uint8_t ret_wire[PIER_GROUP_BLOB_SIZE])
{
	uint8_t wire[PIER_GROUP_BLOB_SIZE] = { 0 };
	int channel = pier_endpoint_pack(&blob->channel, wire + AT_CHANNEL,
					 PIER_ENDPOINT_WIRE_MAX);
	int control = pier_endpoint_pack(&blob->control, wire + AT_CONTROL,
					 PIER_ENDPOINT_WIRE_MAX);

	if (channel < 0 || control < 0)
		return channel < 0 ? channel : control;
	memcpy(wire + AT_MAGIC, magic, sizeof(magic));
	pier_put_le16(wire + AT_VERSION, WIRE_VERSION);
	pier_put_le16(wire + AT_LENGTH, PIER_GROUP_BLOB_SIZE);
	pier_put_le32(wire + AT_SIZE, blob->size);
	pier_put_le32(wire + AT_FROM, blob->from);
	pier_put_le32(wire + AT_TO, blob->to);
	pier_put_le16(wire + AT_CHANNEL_LENGTH, (uint16_t)channel);
	pier_put_le16(wire + AT_CONTROL_LENGTH, (uint16_t)control);
	memcpy(ret_wire, wire, sizeof(wire));
	return 0;
}

/* One of the two endpoints, followed by zeros. */
static int unpack_endpoint(const uint8_t *wire, uint16_t length,
			   struct pier_endpoint *ret_endpoint)
{
	static const uint8_t zeros[PIER_ENDPOINT_WIRE_MAX];
	int error;

	if (length > PIER_ENDPOINT_WIRE_MAX)
		return pier_fail(EBADMSG,
				 "group blob: an endpoint of %u bytes; %d are possible",
				 length, PIER_ENDPOINT_WIRE_MAX);
	if (memcmp(wire + length, zeros, (size_t)PIER_ENDPOINT_WIRE_MAX - length) != 0)
		return pier_fail(EBADMSG,
				 "group blob: the bytes behind an endpoint of %u bytes "
				 "are not zero",
				 length);
	error = pier_endpoint_unpack(wire, length, ret_endpoint);
	/* The length is from the blob, so a wrong one makes the blob invalid. */
	return error == -EMSGSIZE ? -EBADMSG : error;
}

static int check_header(const uint8_t *wire)
{
	if (memcmp(wire, magic, sizeof(magic)) != 0)
		return pier_fail(EBADMSG,
				 "not a group blob: it does not begin with \"PIEG\"");
	if (pier_get_le16(wire + AT_VERSION) != WIRE_VERSION)
		return pier_fail(EPROTONOSUPPORT,
				 "group blob of version %u; this library knows version "
				 "%d",
				 pier_get_le16(wire + AT_VERSION), WIRE_VERSION);
	if (pier_get_le16(wire + AT_LENGTH) != PIER_GROUP_BLOB_SIZE)
		return pier_fail(EBADMSG, "group blob: its header says %u bytes",
				 pier_get_le16(wire + AT_LENGTH));
	return 0;
}

int pier_group_unpack_blob(const uint8_t wire[PIER_GROUP_BLOB_SIZE],
			   struct pier_group_blob *ret_blob)
{
	struct pier_group_blob blob = { 0 };
	int error = check_header(wire);

	if (error)
		return error;
	blob.size = pier_get_le32(wire + AT_SIZE);
	blob.from = pier_get_le32(wire + AT_FROM);
	blob.to = pier_get_le32(wire + AT_TO);
	if (blob.size > PIER_GROUP_MAX || blob.from >= blob.size ||
	    blob.to >= blob.size || blob.from == blob.to)
		return pier_fail(EBADMSG,
				 "group blob: from rank %u to rank %u in a group of %u",
				 blob.from, blob.to, blob.size);
	error = unpack_endpoint(wire + AT_CHANNEL,
				pier_get_le16(wire + AT_CHANNEL_LENGTH), &blob.channel);
	if (!error)
		error = unpack_endpoint(wire + AT_CONTROL,
					pier_get_le16(wire + AT_CONTROL_LENGTH),
					&blob.control);
	if (error)
		return error;
	*ret_blob = blob;
	return 0;
}

/*
 * Exchange blobs over a socket to each other rank. All are read and written at once, as
 * the sockets allow. Barrier messages then confirm the connections, as with any
 * launcher.
 */

/* The socket to one rank. */
struct blob_exchange {
	int socket;
	size_t sent, got; /* bytes of our blob sent, and of its blob received */
};

struct blob_exchanges {
	struct blob_exchange *ranks; /* by rank; this rank's own is over */
	uint8_t *mine, *theirs;
	int64_t deadline;
	int timeout_ms; /* the caller's */
};

static bool is_over(const struct blob_exchange *exchange)
{
	return exchange->sent == PIER_GROUP_BLOB_SIZE &&
	       exchange->got == PIER_GROUP_BLOB_SIZE;
}

static int break_for_socket(struct pier_group *group, uint32_t rank, const char *step,
			    int error)
{
	return pier_group_break(group, rank, error, "%s rank %u of %u, fd %d: %s", step,
				rank, group->size, group->fds[rank].fd, strerror(error));
}

/* Reads no more than the blob: the bytes behind it belong to the caller. */
static int read_some(struct pier_group *group, struct blob_exchanges *all, uint32_t rank)
{
	struct blob_exchange *exchange = &all->ranks[rank];
	uint8_t *to = all->theirs + (size_t)rank * PIER_GROUP_BLOB_SIZE + exchange->got;
	ssize_t count = recv(exchange->socket, to, PIER_GROUP_BLOB_SIZE - exchange->got,
			     MSG_DONTWAIT);

	if (count > 0)
		exchange->got += (size_t)count;
	else if (count == 0)
		return pier_group_break(group, rank, ECONNRESET,
					"rank %u of %u closed its socket after %zu bytes",
					rank, group->size, exchange->got);
	else if (!pier_is_transient(errno))
		return break_for_socket(group, rank, "read from", errno);
	return 0;
}

static int write_some(struct pier_group *group, struct blob_exchanges *all, uint32_t rank)
{
	struct blob_exchange *exchange = &all->ranks[rank];
	uint8_t *from = all->mine + (size_t)rank * PIER_GROUP_BLOB_SIZE + exchange->sent;
	ssize_t count = send(exchange->socket, from,
			     PIER_GROUP_BLOB_SIZE - exchange->sent,
			     MSG_DONTWAIT | MSG_NOSIGNAL);

	if (count >= 0)
		exchange->sent += (size_t)count;
	else if (!pier_is_transient(errno))
		return break_for_socket(group, rank, "write to", errno);
	return 0;
}

/* Returns the number of sockets that are not over. poll(2) ignores negative fds. */
static uint32_t fill_in_fds(struct pier_group *group, const struct blob_exchanges *all)
{
	uint32_t count = 0;

	for (uint32_t rank = 0; rank < group->size; rank++) {
		const struct blob_exchange *exchange = &all->ranks[rank];
		bool reads = exchange->got < PIER_GROUP_BLOB_SIZE;
		bool writes = exchange->sent < PIER_GROUP_BLOB_SIZE;

		group->fds[rank] = (struct pollfd){
			.fd = is_over(exchange) ? -1 : exchange->socket,
			.events = (short)((reads ? POLLIN : 0) | (writes ? POLLOUT : 0)),
		};
		count += !is_over(exchange);
	}
	return count;
}

static int break_for_silent(struct pier_group *group, const struct blob_exchanges *all)
{
	uint32_t rank = 0;

	while (is_over(&all->ranks[rank]))
		rank++;
	return pier_group_break(group, rank, ETIMEDOUT,
				"rank %u of %u sent %zu of %d bytes within %d ms", rank,
				group->size, all->ranks[rank].got, PIER_GROUP_BLOB_SIZE,
				all->timeout_ms);
}

static int poll_sockets(struct pier_group *group, struct blob_exchanges *all)
{
	int timeout = pier_poll_timeout(all->deadline), error = 0;
	int count = pier_sleep(group->fds, group->size, timeout);

	if (count < 0)
		return pier_group_break(group, group->rank, -count,
					"poll the sockets of a group: %s",
					strerror(-count));
	if (count == 0 && timeout == 0)
		return break_for_silent(group, all);
	for (uint32_t rank = 0; rank < group->size && count > 0 && !error; rank++) {
		short events = group->fds[rank].revents;

		if (events & POLLNVAL)
			error = break_for_socket(group, rank, "talk to", EBADF);
		else if (events & ~POLLOUT)
			error = read_some(group, all, rank);
		if (!error && (events & POLLOUT))
			error = write_some(group, all, rank);
	}
	return error;
}

static int check_sockets(const struct pier_group *group, const int *sockets)
{
	for (uint32_t rank = 0; rank < group->size; rank++) {
		if (rank != group->rank && sockets[rank] < 0)
			return pier_fail(EBADF, "the socket to rank %u is fd %d", rank,
					 sockets[rank]);
	}
	return 0;
}

static int start_exchanges(const struct pier_group *group, const int *sockets,
			   struct blob_exchanges *all)
{
	assert(group->size > 0);
	all->ranks = calloc(group->size, sizeof(all->ranks[0]));
	all->mine = calloc(group->size, PIER_GROUP_BLOB_SIZE);
	all->theirs = calloc(group->size, PIER_GROUP_BLOB_SIZE);
	if (!all->ranks || !all->mine || !all->theirs)
		return pier_fail(ENOMEM, "no memory for the blobs of a group of %u",
				 group->size);
	for (uint32_t rank = 0; rank < group->size; rank++)
		all->ranks[rank].socket = rank == group->rank ? -1 : sockets[rank];
	all->ranks[group->rank].sent = PIER_GROUP_BLOB_SIZE;
	all->ranks[group->rank].got = PIER_GROUP_BLOB_SIZE;
	return 0;
}

static int shake_hands(struct pier_group *group, struct blob_exchanges *all)
{
	size_t size = (size_t)group->size * PIER_GROUP_BLOB_SIZE;
	int error = pier_group_endpoints(group, all->mine, size);

	if (error)
		return error;
	while (!error && fill_in_fds(group, all) > 0)
		error = poll_sockets(group, all);
	if (!error)
		return pier_group_connect(group, all->theirs, size,
					  pier_poll_timeout(all->deadline));
	group->state = PIER_GROUP_FAILED;
	return error;
}

int pier_group_handshake(struct pier_group *group, const int *sockets, int timeout_ms)
{
	PIER_REFUSE_NULL(group);
	PIER_REFUSE_NULL_ARRAY(sockets, group->size - 1);
	struct blob_exchanges all = { 0 };
	int error = pier_check_group(group, PIER_GROUP_PREPARED, timeout_ms,
				     &all.timeout_ms);

	if (!error)
		error = check_sockets(group, sockets);
	if (error)
		return error;
	all.deadline = pier_deadline(all.timeout_ms);
	error = start_exchanges(group, sockets, &all);
	if (!error)
		error = shake_hands(group, &all);
	free(all.ranks);
	free(all.mine);
	free(all.theirs);
	return error;
}

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
	PIER_REFUSE_NULL(group);
	PIER_REFUSE_NULL_ARRAY(ret_blobs, size);
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

/* pier_channel_connect() refuses channels of groups. */
static int connect_member(struct pier_channel *channel, const struct pier_endpoint *peer)
{
	return pier_connect_until(channel, peer, pier_deadline(channel->attr.timeout_ms));
}

static int connect_to_itself(struct pier_group *group)
{
	struct pier_channel *channel = group->members[group->rank].channel;
	struct pier_endpoint endpoint;
	int error = pier_channel_endpoint(channel, &endpoint);

	return error ? error : connect_member(channel, &endpoint);
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

static int post_receives(struct pier_group_member *member)
{
	int error = 0;

	for (int i = 0; i < PIER_GROUP_RECEIVES && !error; i++)
		error = pier_channel_post_recv(member->control, NULL, 0,
					       &member->receives[i]);
	return error;
}

static int connect_to(struct pier_group *group, uint32_t rank, const uint8_t *wire)
{
	struct pier_group_member *member = &group->members[rank];
	struct pier_group_blob blob;
	int error = pier_group_unpack_blob(wire, &blob);

	if (!error)
		error = check_blob(group, rank, &blob);
	if (!error)
		error = post_receives(member);
	/*
	 * The message of the other rank says that requests may come, so connect its
	 * channel last.
	 */
	if (!error)
		error = connect_member(member->channel, &blob.channel);
	return error ? error : connect_member(member->control, &blob.control);
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

		if (!error || first)
			continue;
		first = error;
		pier_group_break(group, rank, ECONNREFUSED,
				 "connecting to rank %u of %u: %s", rank, group->size,
				 pier_error_message());
	}
	return first;
}

int pier_group_connect(struct pier_group *group, const void *blobs, size_t size,
		       int timeout_ms)
{
	PIER_REFUSE_NULL(group);
	PIER_REFUSE_NULL_ARRAY(blobs, size);
	int error = pier_check_group(group, PIER_GROUP_PREPARED, timeout_ms, &timeout_ms);
	int64_t deadline;

	if (error)
		return error;
	if (size != (size_t)group->size * PIER_GROUP_BLOB_SIZE)
		return pier_fail(EMSGSIZE, "blobs of a group of %u: %zu bytes, not %zu",
				 group->size, size,
				 (size_t)group->size * PIER_GROUP_BLOB_SIZE);
	deadline = pier_deadline(timeout_ms);
	error = connect_to_all(group, blobs);
	if (!error)
		error = pier_group_confirm(group, deadline, timeout_ms);
	group->state = error ? PIER_GROUP_FAILED : PIER_GROUP_CONNECTED;
	if (!error)
		return 0;
	pier_group_send_failure(group);
	return pier_fail(-error, "%s", group->cause);
}
