/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "message.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/fd.h"
#include "core/sleep.h"

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

static int exchange_blobs(struct pier_group *group, struct blob_exchanges *all)
{
	int error = 0;

	while (!error && fill_in_fds(group, all) > 0)
		error = poll_sockets(group, all);
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
		all->ranks[rank].socket = sockets[rank];
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
	error = exchange_blobs(group, all);
	if (!error)
		return pier_group_connect(group, all->theirs, size,
					  pier_poll_timeout(all->deadline));
	group->state = PIER_GROUP_FAILED;
	return error;
}

int pier_group_handshake(struct pier_group *group, const int *sockets, int timeout_ms)
{
	struct blob_exchanges all = { 0 };
	int error = pier_check_unconnected_group(group, timeout_ms, &all.timeout_ms);

	if (!error)
		error = pier_check_array(sockets, group->size - 1, "sockets");
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
