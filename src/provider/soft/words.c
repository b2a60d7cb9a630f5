/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "core/wire.h"
#include "soft.h"

/*
 * The words that the two ends of a lane exchange over their socket. All are
 * little-endian. The first byte gives the type and the length, except that a leave is
 * longer by its pieces:
 *
 *	wake	 1 byte
 *	ask	 type, 3 zeros, key (4)
 *	dropped	 type, 3 zeros, slot (4), serial (4)
 *	revoked	 the same
 *	leave	 type, fds, 1 if writes are counted, 1 if there will never be one,
 *		 key, slot, serial (4 each), 4 zeros, pieces (4), iova (8), 8 zeros;
 *		 for each piece offset, length (8 each), fd (4), 4 zeros;
 *		 the fds come with the first byte
 */

enum {
	WAKE = 1,
	ASK,
	DROPPED,
	REVOKED,
	LEAVE,
	ASK_SIZE = 8,
	SERIAL_SIZE = 12,
	LEAVE_SIZE = 40,
	PIECE_SIZE = 24,
	/* In one turn: a peer that never stops talking must not keep us from others. */
	MAX_READS = 64
};

_Static_assert(SOFT_MAX_WORD == LEAVE_SIZE + SOFT_WORD_PIECES * PIECE_SIZE, "lane.h");

static bool say(struct soft_qp *qp, const uint8_t *bytes, size_t length)
{
	return send(qp->link.tx_fd, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL) ==
	       (ssize_t)length;
}

/* If the socket is full, there is something in it that wakes the peer. */
void pier_soft_say_wake(struct soft_qp *qp)
{
	const uint8_t word = WAKE;

	say(qp, &word, 1);
}

bool pier_soft_say_ask(struct soft_qp *qp, uint32_t key)
{
	uint8_t word[ASK_SIZE] = { ASK };

	pier_put_le32(word + 4, key);
	return say(qp, word, sizeof(word));
}

static void say_serial(struct soft_qp *qp, uint8_t type, uint32_t slot, uint32_t serial)
{
	uint8_t word[SERIAL_SIZE] = { type };

	pier_put_le32(word + 4, slot);
	pier_put_le32(word + 8, serial);
	say(qp, word, sizeof(word));
}

void pier_soft_say_dropped(struct soft_qp *qp, uint32_t slot, uint32_t serial)
{
	say_serial(qp, DROPPED, slot, serial);
}

void pier_soft_say_revoked(struct soft_qp *qp, uint32_t slot, uint32_t serial)
{
	say_serial(qp, REVOKED, slot, serial);
}

static size_t pack_leave(const struct soft_leave_word *word, uint8_t *ret_bytes)
{
	uint8_t *piece = ret_bytes + LEAVE_SIZE;

	memset(ret_bytes, 0, LEAVE_SIZE + word->count * PIECE_SIZE);
	ret_bytes[0] = LEAVE;
	ret_bytes[1] = (uint8_t)word->fd_count;
	ret_bytes[2] = word->counted;
	ret_bytes[3] = word->never;
	pier_put_le32(ret_bytes + 4, word->key);
	pier_put_le32(ret_bytes + 8, word->slot);
	pier_put_le32(ret_bytes + 12, word->serial);
	pier_put_le32(ret_bytes + 20, word->count);
	pier_put_le64(ret_bytes + 24, word->iova);
	for (uint32_t i = 0; i < word->count; i++, piece += PIECE_SIZE) {
		pier_put_le64(piece, word->pieces[i].offset);
		pier_put_le64(piece + 8, word->pieces[i].length);
		pier_put_le32(piece + 16, word->pieces[i].fd);
	}
	return LEAVE_SIZE + word->count * PIECE_SIZE;
}

/* A word fits one packet of a Unix socket, which is taken whole or not at all. */
bool pier_soft_say_leave(struct soft_qp *qp, const struct soft_leave_word *word,
			 const int *fds)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int) * SOFT_WORD_PIECES)];
	uint8_t bytes[SOFT_MAX_WORD];
	struct iovec part = { .iov_base = bytes, .iov_len = pack_leave(word, bytes) };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	struct cmsghdr *header = (struct cmsghdr *)control;

	if (word->fd_count > 0) {
		memset(control, 0, sizeof(control));
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(sizeof(int) * word->fd_count);
		memcpy(CMSG_DATA(header), fds, sizeof(int) * word->fd_count);
		message.msg_control = control;
		message.msg_controllen = CMSG_SPACE(sizeof(int) * word->fd_count);
	}
	return sendmsg(qp->link.tx_fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) ==
	       (ssize_t)part.iov_len;
}

/* False: out of range. What a valid piece is, its taker finds out. */
static bool unpack_leave(const uint8_t *bytes, struct soft_leave_word *ret_word)
{
	const uint8_t *piece = bytes + LEAVE_SIZE;

	ret_word->fd_count = bytes[1];
	ret_word->counted = bytes[2];
	ret_word->never = bytes[3];
	ret_word->key = pier_get_le32(bytes + 4);
	ret_word->slot = pier_get_le32(bytes + 8);
	ret_word->serial = pier_get_le32(bytes + 12);
	ret_word->count = pier_get_le32(bytes + 20);
	ret_word->iova = pier_get_le64(bytes + 24);
	for (uint32_t i = 0; i < ret_word->count; i++, piece += PIECE_SIZE) {
		ret_word->pieces[i].offset = pier_get_le64(piece);
		ret_word->pieces[i].length = pier_get_le64(piece + 8);
		ret_word->pieces[i].fd = pier_get_le32(piece + 16);
		if (ret_word->pieces[i].fd >= ret_word->fd_count)
			return false;
	}
	return ret_word->slot < SOFT_MAX_GRANTS;
}

static void close_fds(struct soft_lane *lane)
{
	for (int i = 0; i < lane->fd_count; i++)
		pier_soft_close_foreign(lane->fds[i]);
	lane->fd_count = 0;
}

/*
 * With fewer fds than it says there is no leave: we are short of them. A leave that says
 * it has none takes none: those that came are of a leave behind it, in the same read.
 */
static bool hear_leave(struct soft_qp *qp, const uint8_t *bytes)
{
	struct soft_lane *lane = qp->link.lane;
	struct soft_leave_word word;
	bool fits = unpack_leave(bytes, &word);

	if (word.fd_count == 0)
		return fits && pier_soft_take_leave(qp, &word, NULL);
	fits = fits && (uint32_t)lane->fd_count <= word.fd_count;
	if (fits && (uint32_t)lane->fd_count < word.fd_count) {
		pier_soft_say_dropped(qp, word.slot, word.serial);
		word.count = 0;
	}
	if (fits)
		fits = pier_soft_take_leave(qp, &word, lane->fds);
	close_fds(lane);
	return fits;
}

/* 0: not all of it is here; SIZE_MAX: no such word. */
static size_t word_size(const uint8_t *bytes, size_t length)
{
	uint32_t count;

	switch (bytes[0]) {
	case WAKE:
		return 1;
	case ASK:
		return ASK_SIZE;
	case DROPPED:
	case REVOKED:
		return SERIAL_SIZE;
	case LEAVE:
		if (length < LEAVE_SIZE)
			return LEAVE_SIZE;
		count = pier_get_le32(bytes + 20);
		return count > SOFT_WORD_PIECES ? SIZE_MAX
						: LEAVE_SIZE + count * PIECE_SIZE;
	default:
		return SIZE_MAX;
	}
}

static bool hear_word(struct soft_qp *qp, const uint8_t *bytes)
{
	switch (bytes[0]) {
	case ASK:
		pier_soft_answer_ask(qp, pier_get_le32(bytes + 4));
		return true;
	case DROPPED:
		return pier_soft_forget_given(qp, pier_get_le32(bytes + 4),
					      pier_get_le32(bytes + 8));
	case REVOKED:
		pier_soft_forget_held(qp, pier_get_le32(bytes + 4),
				      pier_get_le32(bytes + 8));
		return true;
	case LEAVE:
		return hear_leave(qp, bytes);
	default:
		return true;
	}
}

static bool hear_words(struct soft_qp *qp)
{
	struct soft_lane *lane = qp->link.lane;
	uint32_t at = 0;

	while (at < lane->heard_length) {
		size_t left = lane->heard_length - at;
		size_t size = word_size(lane->heard + at, left);

		if (size == SIZE_MAX)
			return false;
		if (size > left)
			break;
		if (!hear_word(qp, lane->heard + at))
			return false;
		at += (uint32_t)size;
	}
	lane->heard_length -= at;
	memmove(lane->heard, lane->heard + at, lane->heard_length);
	/* Only a leave that is not all here yet has fds to wait for. */
	if (lane->fd_count == 0)
		return true;
	if (lane->heard_length == 0 || lane->heard[0] != LEAVE)
		return false;
	return lane->heard_length < 2 || lane->fd_count <= lane->heard[1];
}

/*
 * Keeps or closes every fd of every control message. False: the peer sent fds that do
 * not belong to one leave. With MSG_CTRUNC the kernel discarded some, because they were
 * more than a leave can have or our fd table is full; those that leave us short of fds
 * are closed here. hear_leave() compares the number.
 */
static bool take_fds(struct soft_lane *lane, struct msghdr *message)
{
	bool none_yet = lane->fd_count == 0, sane = true;

	for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header;
	     header = CMSG_NXTHDR(message, header)) {
		size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < count; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(fd));
			sane = sane && none_yet && lane->fd_count < SOFT_WORD_PIECES;
			if (sane && pier_soft_is_spare(fd))
				lane->fds[lane->fd_count++] = fd;
			else
				pier_soft_close_foreign(fd);
		}
	}
	return sane;
}

/*
 * A read ends behind the bytes that fds came with: unix_stream_read_generic() in the
 * kernel. The rest of a leave whose fds are here is read alone, since what follows it may
 * have fds of its own.
 */
static size_t room_for_words(const struct soft_lane *lane)
{
	size_t room = sizeof(lane->heard) - lane->heard_length, wanted;

	if (lane->fd_count == 0)
		return room;
	wanted = word_size(lane->heard, lane->heard_length) - lane->heard_length;
	return wanted < room ? wanted : room;
}

static ssize_t receive_words(struct soft_qp *qp, bool *ret_sane)
{
	struct soft_lane *lane = qp->link.lane;
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int) * SOFT_WORD_PIECES)];
	struct iovec part = {
		.iov_base = lane->heard + lane->heard_length,
		.iov_len = room_for_words(lane),
	};
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control),
	};
	ssize_t received = recvmsg(qp->link.rx_fd, &message,
				   MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	if (received >= 0)
		*ret_sane = take_fds(lane, &message);
	return received;
}

bool pier_soft_hear(struct soft_qp *qp)
{
	struct soft_link *link = &qp->link;
	bool sane = true;

	for (int reads = 0; sane && reads < MAX_READS; reads++) {
		ssize_t received = receive_words(qp, &sane);

		if (received < 0 && errno == EINTR)
			continue;
		if (received < 0 && errno == EAGAIN)
			return true;
		if (received <= 0) {
			link->hung_up = true;
			return true;
		}
		link->lane->heard_length += (uint32_t)received;
		sane = sane && hear_words(qp);
	}
	/* Others get their turn before the rest is heard. */
	return sane && pier_soft_watch_again(qp);
}

bool pier_soft_is_gone(const struct soft_qp *qp)
{
	struct pollfd socket = { .fd = qp->link.rx_fd, .events = POLLRDHUP };

	return poll(&socket, 1, 0) > 0;
}
