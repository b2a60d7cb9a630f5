/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "stream.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/fd.h"
#include "core/sleep.h"
#include "core/wire.h"

enum {
	AT_MAGIC = 0,
	AT_VERSION = 4,
	AT_TYPE = 6,
	AT_LENGTH = 8,
	WIRE_VERSION = 1,
};

static const uint8_t magic[4] = { 'P', 'I', 'E', 'R' };

uint8_t *pier_begin_message(struct pier_message *message, enum pier_message_type type,
			    size_t length)
{
	uint8_t *header = message->bytes;

	memcpy(header + AT_MAGIC, magic, sizeof(magic));
	pier_put_le16(header + AT_VERSION, WIRE_VERSION);
	pier_put_le16(header + AT_TYPE, (uint16_t)type);
	pier_put_le32(header + AT_LENGTH, (uint32_t)length);
	message->type = type;
	message->have = 0;
	message->length = PIER_MESSAGE_HEADER + length;
	return header + PIER_MESSAGE_HEADER;
}

/* Set the message type, and the message length from the header. */
static int parse_header(struct pier_message *message)
{
	const uint8_t *header = message->bytes;
	uint16_t version = pier_get_le16(header + AT_VERSION);
	uint16_t type = pier_get_le16(header + AT_TYPE);
	uint32_t length = pier_get_le32(header + AT_LENGTH);

	if (memcmp(header + AT_MAGIC, magic, sizeof(magic)) != 0)
		return pier_fail(EBADMSG,
				 "the message of the peer begins with %02x "
				 "%02x %02x %02x instead of \"PIER\": the peer is not "
				 "pier, or something else writes to the same stream",
				 header[0], header[1], header[2], header[3]);
	if (version != WIRE_VERSION)
		return pier_fail(
			EPROTONOSUPPORT,
			"the peer speaks version %u of the handshake, this library %d",
			version, WIRE_VERSION);
	if (type != PIER_MESSAGE_ENDPOINT && type != PIER_MESSAGE_VERDICT)
		return pier_fail(EBADMSG, "the peer sent a message of unknown type %u",
				 type);
	if (type == PIER_MESSAGE_VERDICT ? length != PIER_VERDICT_SIZE
					 : length > PIER_ENDPOINT_WIRE_MAX)
		return pier_fail(EBADMSG,
				 "the peer sent a message of type %u with %u bytes", type,
				 length);
	message->type = (enum pier_message_type)type;
	message->length = PIER_MESSAGE_HEADER + length;
	return 0;
}

/* MSG_DONTWAIT keeps a blocking socket from blocking; pipes were polled. */
static ssize_t read_some(int fd, void *bytes, size_t size)
{
	ssize_t count = recv(fd, bytes, size, MSG_DONTWAIT);

	if (count < 0 && errno == ENOTSOCK)
		count = read(fd, bytes, size);
	return count;
}

static void consume_sigpipe(const sigset_t *sigpipe)
{
	const struct timespec now = { 0 };

	while (sigtimedwait(sigpipe, NULL, &now) < 0 && errno == EINTR)
		continue;
}

/*
 * write(2) without SIGPIPE: the signal goes to this thread only, so block and consume
 * it here.
 */
static ssize_t write_quietly(int fd, const void *bytes, size_t size)
{
	sigset_t sigpipe, before, pending;
	ssize_t count;
	int error;

	sigemptyset(&sigpipe);
	sigaddset(&sigpipe, SIGPIPE);
	sigpending(&pending);
	pthread_sigmask(SIG_BLOCK, &sigpipe, &before);
	count = write(fd, bytes, size);
	error = errno;
	if (count < 0 && error == EPIPE && !sigismember(&pending, SIGPIPE))
		consume_sigpipe(&sigpipe);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	errno = error;
	return count;
}

/*
 * A pipe that poll(2) reports writable takes PIPE_BUF (4096) bytes, more than any
 * message (pipe(7)), so a blocking pipe does not block.
 */
_Static_assert((int)PIER_MESSAGE_MAX <= 4096, "a message is one atomic write");

static ssize_t write_some(int fd, const void *bytes, size_t size)
{
	ssize_t count = send(fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);

	if (count < 0 && errno == ENOTSOCK)
		count = write_quietly(fd, bytes, size);
	return count;
}

/* Read no more than the header, and then the rest of the message. */
static int read_step(struct pier_stream *stream, struct pier_message *in)
{
	ssize_t count = read_some(stream->read_fd, in->bytes + in->have,
				  in->length - in->have);

	if (count < 0 && pier_is_transient(errno))
		return 0;
	if (count == 0 || (count < 0 && errno == ECONNRESET))
		return pier_fail(ECONNRESET,
				 "the peer closed the connection in the handshake, after "
				 "%zu bytes of a message",
				 in->have);
	if (count < 0)
		return pier_fail(errno, "read from fd %d: %s", stream->read_fd,
				 strerror(errno));
	in->have += (size_t)count;
	if (in->have == PIER_MESSAGE_HEADER && in->length == PIER_MESSAGE_HEADER)
		return parse_header(in);
	return 0;
}

static int write_step(struct pier_stream *stream, struct pier_message *out)
{
	ssize_t count = write_some(stream->write_fd, out->bytes + out->have,
				   out->length - out->have);

	if (count >= 0)
		out->have += (size_t)count;
	else if (errno == EPIPE || errno == ECONNRESET)
		stream->write_broken = true;
	else if (!pier_is_transient(errno))
		return pier_fail(errno, "write to fd %d: %s", stream->write_fd,
				 strerror(errno));
	return 0;
}

static bool is_incomplete(const struct pier_message *message)
{
	return message->have < message->length;
}

/* Poll once and do what that allows. Clears *reading if reading has failed. */
static int exchange_step(struct pier_stream *stream, struct pier_message *out,
			 struct pier_message *in, int *read_error)
{
	bool reading = is_incomplete(in) && !*read_error;
	bool writing = is_incomplete(out) && !stream->write_broken;
	struct pollfd fds[] = {
		{ .fd = reading ? stream->read_fd : -1, .events = POLLIN },
		{ .fd = writing ? stream->write_fd : -1, .events = POLLOUT },
	};
	/* Tell a peer that sent nonsense, without waiting for it. */
	int timeout = *read_error ? 0 : pier_poll_timeout(stream->deadline);
	int count = pier_sleep(fds, 2, timeout);

	if (count < 0)
		return count == -EINTR
			       ? count
			       : pier_fail(-count, "poll the fds of a handshake: %s",
					   strerror(-count));
	if (count == 0 && timeout == 0)
		return *read_error ? *read_error
				   : pier_fail(ETIMEDOUT,
					       "the peer did not answer the handshake in "
					       "time (%zu bytes of its message arrived)",
					       in->have);
	if (count > 0 && fds[0].revents)
		*read_error = read_step(stream, in);
	if (count > 0 && fds[1].revents)
		return write_step(stream, out);
	return 0;
}

int pier_exchange_messages(struct pier_stream *stream, struct pier_message *out,
			   struct pier_message *in)
{
	int read_error = 0, error = 0;

	if (in->have == 0)
		in->length = PIER_MESSAGE_HEADER;
	while (!error && ((is_incomplete(in) && !read_error) ||
			  (is_incomplete(out) && !stream->write_broken)))
		error = exchange_step(stream, out, in, &read_error);
	return error ? error : read_error;
}

bool pier_stream_is_readable(const struct pier_stream *stream)
{
	struct pollfd fd = { .fd = stream->read_fd, .events = POLLIN };

	return poll(&fd, 1, 0) > 0;
}

void pier_try_send_message(struct pier_stream *stream, struct pier_message *out)
{
	struct pollfd fd = { .fd = stream->write_fd, .events = POLLOUT };

	if (!stream->write_broken && poll(&fd, 1, 0) > 0)
		write_step(stream, out);
}
