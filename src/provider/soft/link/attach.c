/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "attach.h"
#include "core/environment.h"
#include "core/wire.h"
#include "grant.h"
#include "link.h"
#include "provider/soft/engine.h"
#include "provider/soft/regions/segments.h"
#include "fifo.h"
#include "seal.h"
#include "socket.h"

static int watch_link(const struct soft_link *link)
{
	const uint32_t in = EPOLLIN | EPOLLRDHUP | EPOLLET;
	struct soft_engine *engine = soft_engine_of(link);
	uint64_t id = link->serial * SOFT_MAX_QP + link->end->qpn % SOFT_MAX_QP;
	int error;

	if (link->fifo) /* the FIFO itself shows when it has room */
		return pier_soft_watch(engine, link->rx_fd, in, SOFT_EVENT_QP, id);
	if (link->rx_fd == link->tx_fd)
		return pier_soft_watch(engine, link->rx_fd, in | EPOLLOUT, SOFT_EVENT_QP,
				       id);
	error = pier_soft_watch(engine, link->rx_fd, in, SOFT_EVENT_QP, id);
	if (error)
		return error;
	return pier_soft_watch(engine, link->tx_fd, EPOLLOUT | EPOLLET, SOFT_EVENT_QP,
			       id);
}

/* Watches the socket again, for an event about bytes that are there already. */
static bool rewatch_link(struct soft_link *link)
{
	struct soft_engine *engine = soft_engine_of(link);

	pier_soft_unwatch(engine, link->rx_fd);
	if (link->tx_fd != link->rx_fd)
		pier_soft_unwatch(engine, link->tx_fd);
	return watch_link(link) == 0;
}

static void start_fifo(struct soft_link *link)
{
	link->fifo->link = link;
	link->fifo->shares_fds = pier_soft_may_have_fds(link->tx_fd);
	link->fifo->unreachable = pier_switched_off("PIER_SOFT_CMA");
	pier_soft_accept_fds(link->rx_fd, true);
	pier_soft_start_polling(link);
}

int pier_soft_attach_link(struct soft_link *link, int rx_fd, int tx_fd,
			  struct soft_fifo *fifo, struct soft_seal *seal)
{
	struct soft_engine *engine = soft_engine_of(link);
	int error;

	pier_soft_close_link(link);
	/*
	 * Clears all of the previous link, which may have been lost with frames queued.
	 */
	*link = (struct soft_link){
		.end = link->end,
		.rx_fd = rx_fd,
		.tx_fd = tx_fd,
		.fifo = fifo,
		.seal = seal,
	};
	engine->socket_links += !fifo;
	link->serial = ++engine->next_serial;
	error = watch_link(link);
	if (error) {
		pier_soft_close_link(link);
		return error;
	}
	link->readable = link->writable = true;
	if (fifo)
		start_fifo(link);
	pier_soft_activate(&link->end->work);
	return 0;
}

static void close_fifo(struct soft_link *link)
{
	struct soft_fifo *fifo = link->fifo;

	if (!fifo->link)
		fifo->link = link; /* the FIFO was not started */
	pier_soft_revoke_link_grants(link);
	pier_soft_stop_polling(link);
	pier_soft_release_grants(fifo);
	pier_soft_free_fifo(fifo);
}

void pier_soft_close_link(struct soft_link *link)
{
	struct soft_engine *engine = soft_engine_of(link);

	if (!pier_soft_link_open(link))
		return;
	if (link->fifo)
		close_fifo(link);
	else
		engine->socket_links--;
	pier_soft_unwatch(engine, link->rx_fd);
	if (link->tx_fd != link->rx_fd) {
		pier_soft_unwatch(engine, link->tx_fd);
		pier_soft_hang_up(link->tx_fd);
	}
	pier_soft_hang_up(link->rx_fd);
	pier_soft_free_seal(link->seal);
	*link = (struct soft_link){ .end = link->end, .rx_fd = -1, .tx_fd = -1 };
}

enum {
	/* Per turn: a peer that sends without end must not delay the others. */
	MAX_READS = 64
};

/* False: a value is out of range. pier_soft_accept_grant() checks the segments. */
static bool unpack_grant(const uint8_t *bytes, struct soft_grant_message *ret_grant)
{
	const uint8_t *segment = bytes + SOFT_CONTROL_GRANT_SIZE;

	ret_grant->fd_count = bytes[1];
	ret_grant->counted = bytes[2];
	ret_grant->never = bytes[3];
	ret_grant->key = pier_get_le32(bytes + 4);
	ret_grant->slot = pier_get_le32(bytes + 8);
	ret_grant->serial = pier_get_le32(bytes + 12);
	ret_grant->rights = pier_get_le32(bytes + 16);
	ret_grant->count = pier_get_le32(bytes + 20);
	ret_grant->iova = pier_get_le64(bytes + 24);
	ret_grant->shared_memory = pier_get_le64(bytes + 32);
	for (uint32_t i = 0; i < ret_grant->count;
	     i++, segment += SOFT_CONTROL_SEGMENT_SIZE) {
		ret_grant->segments[i].offset = pier_get_le64(segment);
		ret_grant->segments[i].length = pier_get_le64(segment + 8);
		ret_grant->segments[i].fd = pier_get_le32(segment + 16);
		if (!ret_grant->shared_memory &&
		    ret_grant->segments[i].fd >= ret_grant->fd_count)
			return false;
	}
	return ret_grant->slot < SOFT_MAX_GRANTS;
}

/*
 * A grant with fewer fds than it announces is of no use: this process is short of fds.
 * One that announces none takes none: the fds belong to a later grant of the same read.
 */
static bool handle_grant(struct soft_link *link, const uint8_t *bytes)
{
	struct soft_fifo *fifo = link->fifo;
	struct soft_grant_message grant;
	bool fits = unpack_grant(bytes, &grant);

	if (grant.fd_count == 0)
		return fits && pier_soft_accept_grant(link, &grant, NULL);
	fits = fits && (uint32_t)fifo->fd_count <= grant.fd_count;
	if (fits && (uint32_t)fifo->fd_count < grant.fd_count) {
		pier_soft_send_serial(link, SOFT_CONTROL_RETURNED, grant.slot,
				      grant.serial);
		grant.count = 0;
	}
	if (fits)
		fits = pier_soft_accept_grant(link, &grant, fifo->fds);
	for (int i = 0; i < fifo->fd_count; i++)
		pier_soft_close_foreign(fifo->fds[i]);
	fifo->fd_count = 0;
	return fits;
}

/* The least size, judged by the first `length` bytes. SIZE_MAX: no such message. */
static size_t message_size(const uint8_t *bytes, size_t length)
{
	uint32_t count;

	switch (bytes[0]) {
	case SOFT_CONTROL_WAKE:
		return 1;
	case SOFT_CONTROL_REQUEST:
		return SOFT_CONTROL_REQUEST_SIZE;
	case SOFT_CONTROL_RETURNED:
	case SOFT_CONTROL_REVOKED:
		return SOFT_CONTROL_SERIAL_SIZE;
	case SOFT_CONTROL_GRANT:
		if (length < SOFT_CONTROL_GRANT_SIZE)
			return SOFT_CONTROL_GRANT_SIZE;
		count = pier_get_le32(bytes + 20);
		return count > SOFT_GRANT_SEGMENTS
			       ? SIZE_MAX
			       : SOFT_CONTROL_GRANT_SIZE +
					 count * SOFT_CONTROL_SEGMENT_SIZE;
	default:
		return SIZE_MAX;
	}
}

static bool handle_message(struct soft_link *link, const uint8_t *bytes)
{
	switch (bytes[0]) {
	case SOFT_CONTROL_REQUEST:
		pier_soft_answer_grant_request(link, pier_get_le32(bytes + 4), bytes[1]);
		return true;
	case SOFT_CONTROL_RETURNED:
		return pier_soft_take_returned_grant(link, pier_get_le32(bytes + 4),
						     pier_get_le32(bytes + 8));
	case SOFT_CONTROL_REVOKED:
		pier_soft_drop_revoked_grant(link, pier_get_le32(bytes + 4),
					     pier_get_le32(bytes + 8));
		return true;
	case SOFT_CONTROL_GRANT:
		return handle_grant(link, bytes);
	default:
		return true;
	}
}

static bool handle_messages(struct soft_link *link)
{
	struct soft_fifo *fifo = link->fifo;
	uint32_t at = 0;

	while (at < fifo->control_length) {
		size_t left = fifo->control_length - at;
		size_t size = message_size(fifo->control + at, left);

		if (size == SIZE_MAX)
			return false;
		if (size > left)
			break;
		if (!handle_message(link, fifo->control + at))
			return false;
		at += (uint32_t)size;
	}
	fifo->control_length -= at;
	memmove(fifo->control, fifo->control + at, fifo->control_length);
	/* Only an incomplete grant may have fds that no message has taken. */
	if (fifo->fd_count == 0)
		return true;
	if (fifo->control_length == 0 || fifo->control[0] != SOFT_CONTROL_GRANT)
		return false;
	return fifo->control_length < 2 || fifo->fd_count <= fifo->control[1];
}

/*
 * Keeps or closes every fd of every SCM_RIGHTS message. False: the peer sent fds that do
 * not belong to one grant. With MSG_CTRUNC the kernel discarded some, because they were
 * more than a grant can have or our fd table is full. Fds that the process cannot spare
 * are closed here. handle_grant() compares the number.
 */
static bool take_control_fds(struct soft_fifo *fifo, struct msghdr *message)
{
	bool none_yet = fifo->fd_count == 0, sane = true;

	for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header;
	     header = CMSG_NXTHDR(message, header)) {
		size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < count; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(fd));
			sane = sane && none_yet && fifo->fd_count < SOFT_GRANT_SEGMENTS;
			if (sane && pier_soft_is_spare(fd))
				fifo->fds[fifo->fd_count++] = fd;
			else
				pier_soft_close_foreign(fd);
		}
	}
	return sane;
}

/*
 * A read ends after the bytes that fds came with: unix_stream_read_generic() in the
 * kernel. The rest of a grant whose fds have arrived is read alone, since the message
 * after it may have fds of its own.
 */
static size_t room_for_messages(const struct soft_fifo *fifo)
{
	size_t room = sizeof(fifo->control) - fifo->control_length, wanted;

	if (fifo->fd_count == 0)
		return room;
	wanted = message_size(fifo->control, fifo->control_length) - fifo->control_length;
	return wanted < room ? wanted : room;
}

static ssize_t receive_messages(struct soft_link *link, bool *ret_sane)
{
	struct soft_fifo *fifo = link->fifo;
	_Alignas(struct cmsghdr) char
		control[CMSG_SPACE(sizeof(int) * SOFT_GRANT_SEGMENTS)];
	struct iovec part = {
		.iov_base = fifo->control + fifo->control_length,
		.iov_len = room_for_messages(fifo),
	};
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control),
	};
	ssize_t received = recvmsg(link->rx_fd, &message,
				   MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	if (received >= 0)
		*ret_sane = take_control_fds(fifo, &message);
	return received;
}

bool pier_soft_receive_control(struct soft_link *link)
{
	bool sane = true;

	for (int reads = 0; sane && reads < MAX_READS; reads++) {
		ssize_t received = receive_messages(link, &sane);

		if (received < 0 && errno == EINTR)
			continue;
		if (received < 0 && errno == EAGAIN)
			return true;
		if (received <= 0) {
			link->hung_up = true;
			return true;
		}
		link->fifo->control_length += (uint32_t)received;
		sane = sane && handle_messages(link);
	}
	/* The rest is handled in a later turn. */
	return sane && rewatch_link(link);
}
