/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "group.h"
#include "core/deadline.h"
#include "core/error.h"

/*
 * Blobs over a socket to each other rank: all are written and read at once, as the
 * sockets allow. That connecting worked is said by notices, as with any launcher.
 */

/* Of one rank. */
struct talk {
	int socket;
	size_t sent, got; /* bytes of its blob, and of ours */
};

struct talks {
	struct talk *talks; /* by rank; the own one is over */
	uint8_t *mine, *theirs;
	int64_t deadline;
	int timeout_ms; /* what the caller was given */
};

static bool is_over(const struct talk *talk)
{
	return talk->sent == PIER_GROUP_BLOB_SIZE && talk->got == PIER_GROUP_BLOB_SIZE;
}

static bool try_again(int error)
{
	return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

static int blame_socket(struct pier_group *group, uint32_t rank, const char *step,
			int error)
{
	return pier_group_blame(group, rank, error, "%s rank %u of %u, fd %d: %s", step,
				rank, group->size, group->fds[rank].fd, strerror(error));
}

/* Never asks for more than the blob: what is behind it is the caller's. */
static int read_some(struct pier_group *group, struct talks *all, uint32_t rank)
{
	struct talk *talk = &all->talks[rank];
	uint8_t *to = all->theirs + (size_t)rank * PIER_GROUP_BLOB_SIZE + talk->got;
	ssize_t count = recv(talk->socket, to, PIER_GROUP_BLOB_SIZE - talk->got,
			     MSG_DONTWAIT);

	if (count > 0)
		talk->got += (size_t)count;
	else if (count == 0)
		return pier_group_blame(group, rank, ECONNRESET,
					"rank %u of %u closed its socket after %zu bytes",
					rank, group->size, talk->got);
	else if (!try_again(errno))
		return blame_socket(group, rank, "read from", errno);
	return 0;
}

static int write_some(struct pier_group *group, struct talks *all, uint32_t rank)
{
	struct talk *talk = &all->talks[rank];
	uint8_t *from = all->mine + (size_t)rank * PIER_GROUP_BLOB_SIZE + talk->sent;
	ssize_t count = send(talk->socket, from, PIER_GROUP_BLOB_SIZE - talk->sent,
			     MSG_DONTWAIT | MSG_NOSIGNAL);

	if (count >= 0)
		talk->sent += (size_t)count;
	else if (!try_again(errno))
		return blame_socket(group, rank, "write to", errno);
	return 0;
}

/* Returns how many talks go on. Negative fds are passed over by poll(2). */
static uint32_t fill_in_fds(struct pier_group *group, const struct talks *all)
{
	uint32_t count = 0;

	for (uint32_t rank = 0; rank < group->size; rank++) {
		const struct talk *talk = &all->talks[rank];
		bool reads = talk->got < PIER_GROUP_BLOB_SIZE;
		bool writes = talk->sent < PIER_GROUP_BLOB_SIZE;

		group->fds[rank] = (struct pollfd){
			.fd = is_over(talk) ? -1 : talk->socket,
			.events = (short)((reads ? POLLIN : 0) | (writes ? POLLOUT : 0)),
		};
		count += !is_over(talk);
	}
	return count;
}

static int blame_silent(struct pier_group *group, const struct talks *all)
{
	uint32_t rank = 0;

	while (is_over(&all->talks[rank]))
		rank++;
	return pier_group_blame(group, rank, ETIMEDOUT,
				"rank %u of %u sent %zu of %d bytes within %d ms", rank,
				group->size, all->talks[rank].got, PIER_GROUP_BLOB_SIZE,
				all->timeout_ms);
}

static int step(struct pier_group *group, struct talks *all)
{
	int timeout = pier_poll_timeout(all->deadline), error = 0;
	int count = poll(group->fds, group->size, timeout);

	if (count < 0 && errno != EINTR)
		return pier_group_blame(group, group->rank, errno,
					"poll the sockets of a group: %s",
					strerror(errno));
	if (count == 0 && timeout == 0)
		return blame_silent(group, all);
	for (uint32_t rank = 0; rank < group->size && count > 0 && !error; rank++) {
		short events = group->fds[rank].revents;

		if (events & POLLNVAL)
			error = blame_socket(group, rank, "talk to", EBADF);
		else if (events & ~POLLOUT)
			error = read_some(group, all, rank);
		if (!error && (events & POLLOUT))
			error = write_some(group, all, rank);
	}
	return error;
}

static int exchange_blobs(struct pier_group *group, struct talks *all)
{
	int error = 0;

	while (!error && fill_in_fds(group, all) > 0)
		error = step(group, all);
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

static int start_talks(const struct pier_group *group, const int *sockets,
		       struct talks *all)
{
	assert(group->size > 0);
	all->talks = calloc(group->size, sizeof(all->talks[0]));
	all->mine = calloc(group->size, PIER_GROUP_BLOB_SIZE);
	all->theirs = calloc(group->size, PIER_GROUP_BLOB_SIZE);
	if (!all->talks || !all->mine || !all->theirs)
		return pier_fail(ENOMEM, "no memory for the blobs of a group of %u",
				 group->size);
	for (uint32_t rank = 0; rank < group->size; rank++)
		all->talks[rank].socket = sockets[rank];
	all->talks[group->rank].sent = PIER_GROUP_BLOB_SIZE;
	all->talks[group->rank].got = PIER_GROUP_BLOB_SIZE;
	return 0;
}

static int shake_hands(struct pier_group *group, struct talks *all)
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
	struct talks all = { 0 };
	int error = pier_check_unconnected_group(group, timeout_ms, &all.timeout_ms);

	if (!error)
		error = check_sockets(group, sockets);
	if (error)
		return error;
	all.deadline = pier_deadline(all.timeout_ms);
	error = start_talks(group, sockets, &all);
	if (!error)
		error = shake_hands(group, &all);
	free(all.talks);
	free(all.mine);
	free(all.theirs);
	return error;
}
