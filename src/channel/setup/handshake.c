/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "channel/channel.h"
#include "connect.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/fd.h"
#include "core/sleep.h"
#include "core/wire.h"
#include "handshake.h"

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

/*
 * write(2) without SIGPIPE: the signal goes to this thread only, so block and consume
 * it here.
 */
static ssize_t write_quietly(int fd, const void *bytes, size_t size)
{
	const struct timespec now = { 0 };
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
		while (sigtimedwait(&sigpipe, NULL, &now) < 0 && errno == EINTR)
			continue;
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

/*
 * Send one message and receive one, in the order that the peer allows, as far as that is
 * possible without waiting. `in` begins with `have` 0; each of the two that is complete
 * already is left as it is. stream->wanted is set to what to wait for.
 *
 * A peer that has closed its end may have sent the reason before. A write that fails
 * for that reason sets write_broken, and reading continues. A peer that sent nonsense is
 * told what fits without waiting.
 *
 * Returns 1 when both are complete, 0 before that, or an error: -ETIMEDOUT; -ECONNRESET
 * the peer closed the connection; -EBADMSG and -EPROTONOSUPPORT an invalid message;
 * others of poll(2), read(2) and write(2).
 */
static int exchange_messages(struct pier_stream *stream, struct pier_message *out,
			     struct pier_message *in)
{
	struct pollfd *fds = stream->wanted;
	int read_error = 0, error = 0;

	if (in->have == 0)
		in->length = PIER_MESSAGE_HEADER;
	for (;;) {
		bool reading = is_incomplete(in) && !read_error;
		bool writing = is_incomplete(out) && !stream->write_broken;
		bool is_late = pier_poll_timeout(stream->deadline) == 0;
		int count;

		if (error || (!reading && !writing))
			return error ? error : read_error ? read_error : 1;
		fds[0].fd = reading ? stream->read_fd : -1;
		fds[1].fd = writing ? stream->write_fd : -1;
		count = poll(fds, 2, 0);
		if (count < 0 && errno != EINTR)
			return pier_fail(errno, "poll the fds of a handshake: %s",
					 strerror(errno));
		if (count == 0 && read_error)
			return read_error;
		if (count == 0)
			return is_late ? pier_fail(
						 ETIMEDOUT,
						 "the peer did not answer the handshake "
						 "in time (%zu bytes of its message "
						 "arrived)",
						 in->have)
				       : 0;
		if (count > 0 && fds[0].revents)
			read_error = read_step(stream, in);
		if (count > 0 && fds[1].revents)
			error = write_step(stream, out);
	}
}

/*
 * Both ends do the same at once: send the endpoint and receive that of the peer,
 * connect, send the verdict and receive that of the peer. The verdict names the
 * generation of the endpoint that it answers, so an end whose endpoint was out of date
 * does not take itself for connected.
 */

enum {
	AT_ERROR = 0,
	AT_GENERATION = 4,
	LONGEST_ERRNO = 4095, /* as in the kernel (MAX_ERRNO) */
};

static void write_verdict(struct pier_message *message, int error, uint32_t generation)
{
	uint8_t *payload = pier_begin_message(message, PIER_MESSAGE_VERDICT,
					      PIER_VERDICT_SIZE);

	pier_put_le32(payload + AT_ERROR, (uint32_t)-error);
	pier_put_le32(payload + AT_GENERATION, generation);
}

static int write_endpoint(struct pier_channel *channel, struct pier_message *message)
{
	struct pier_endpoint endpoint;
	uint8_t wire[PIER_ENDPOINT_WIRE_MAX];
	int length = pier_channel_endpoint(channel, &endpoint);

	if (length == 0)
		length = pier_endpoint_pack(&endpoint, wire, sizeof(wire));
	if (length < 0)
		return length;
	memcpy(pier_begin_message(message, PIER_MESSAGE_ENDPOINT, (size_t)length), wire,
	       (size_t)length);
	return 0;
}

/* Whether this end had the generation before it was reset. */
static bool is_earlier(const struct pier_channel *channel, uint32_t generation)
{
	return generation && generation != channel->generation &&
	       channel->generation - generation <= channel->resets;
}

/*
 * A handshake that fails leaves messages in the stream, the verdict last. The peer's
 * verdict belongs to such a handshake if it answers an earlier endpoint of this end, or
 * none because the peer gave up waiting for it.
 */
static bool is_left_over(const struct pier_channel *channel,
			 const struct pier_message *message)
{
	const uint8_t *payload = message->bytes + PIER_MESSAGE_HEADER;
	uint32_t error = pier_get_le32(payload + AT_ERROR);
	uint32_t answered = pier_get_le32(payload + AT_GENERATION);

	if (message->type != PIER_MESSAGE_VERDICT)
		return false;
	return answered ? is_earlier(channel, answered)
			: error == ETIMEDOUT || error == EINTR;
}

static int read_verdict(const struct pier_channel *channel,
			const struct pier_message *message)
{
	const uint8_t *payload = message->bytes + PIER_MESSAGE_HEADER;
	uint32_t error = pier_get_le32(payload + AT_ERROR);
	uint32_t answered = pier_get_le32(payload + AT_GENERATION);

	if (message->type != PIER_MESSAGE_VERDICT)
		return pier_fail(EBADMSG,
				 "the peer sent a second endpoint instead of a verdict");
	if (error > LONGEST_ERRNO)
		return pier_fail(EBADMSG, "the peer's verdict, %#x, is not an errno",
				 error);
	if (error)
		return pier_fail(ECONNREFUSED,
				 "the peer could not connect to this end: %s (the peer's "
				 "own error says why)",
				 strerror((int)error));
	if (answered == channel->generation)
		return 0;
	if (is_earlier(channel, answered))
		return pier_fail(ESTALE, "the peer answers an endpoint that "
					 "this end had before it was reset");
	return pier_fail(EBADMSG, "the peer answers an endpoint of another "
				  "connection");
}

static int read_endpoint(const struct pier_channel *channel,
			 const struct pier_message *message,
			 struct pier_endpoint *ret_peer)
{
	int error;

	if (message->type == PIER_MESSAGE_ENDPOINT) {
		error = pier_endpoint_unpack(message->bytes + PIER_MESSAGE_HEADER,
					     message->length - PIER_MESSAGE_HEADER,
					     ret_peer);
		/* -EMSGSIZE is about the caller's buffer, and the caller passed none. */
		return error == -EMSGSIZE ? -EBADMSG : error;
	}
	/*
	 * A verdict in place of the endpoint gives the reason why the peer cannot
	 * begin.
	 */
	error = read_verdict(channel, message);
	return error ? error
		     : pier_fail(EBADMSG,
				 "the peer sent a verdict instead of an endpoint");
}

/* The peer's message was not valid: tell the peer, without waiting. */
static int refuse_peer(struct pier_stream *stream, int error)
{
	struct pollfd fd = { .fd = stream->write_fd, .events = POLLOUT };
	struct pier_message verdict;

	write_verdict(&verdict, error, 0);
	if (!stream->write_broken && poll(&fd, 1, 0) > 0)
		write_step(stream, &verdict);
	return error;
}

static int broken_pipe(const struct pier_stream *stream)
{
	return stream->write_broken
		       ? pier_fail(ECONNRESET,
				   "the peer closed the connection in the handshake")
		       : 0;
}

enum phase {
	RECEIVE_ENDPOINT, /* and send this end's */
	/*
	 * The peer sent more at once. A verdict may belong to a handshake that it gave
	 * up.
	 */
	RECEIVE_EARLY_VERDICT,
	CONNECT,
	EXCHANGE_VERDICTS,
	CONNECTED,
};

struct pier_handshake {
	struct pier_stream stream;
	enum phase phase;
	struct pier_message out, in, verdict;
	struct pier_endpoint peer;
	int pause_ms; /* between attempts to connect */
	int error;    /* of this end's connection; the sentence follows */
	char sentence[512];
};

/*
 * Messages that an earlier handshake left are skipped, one in each step. A peer that
 * sends them for ever must neither keep the thread busy nor extend the deadline.
 */
static int skip_message(struct pier_handshake *of)
{
	of->in.have = 0;
	of->phase = RECEIVE_ENDPOINT;
	of->stream.wanted[0].fd = of->stream.read_fd;
	of->stream.wanted[1].fd = -1;
	if (pier_poll_timeout(of->stream.deadline) > 0)
		return 0;
	return pier_fail(ETIMEDOUT, "the peer did not answer in time: it sent only "
				    "messages of earlier handshakes");
}

static int receive_endpoint(struct pier_channel *channel)
{
	struct pier_handshake *of = channel->handshake;
	struct pollfd fd = { .fd = of->stream.read_fd, .events = POLLIN };
	int result = exchange_messages(&of->stream, &of->out, &of->in);

	if (result != 1)
		return result;
	if (is_left_over(channel, &of->in))
		return skip_message(of);
	result = read_endpoint(channel, &of->in, &of->peer);
	of->in.have = of->verdict.have = 0;
	of->phase = poll(&fd, 1, 0) > 0 ? RECEIVE_EARLY_VERDICT : CONNECT;
	return result ? result : 1;
}

static int receive_early_verdict(struct pier_channel *channel)
{
	struct pier_handshake *of = channel->handshake;
	int result = exchange_messages(&of->stream, &of->out, &of->verdict);

	if (result != 1)
		return result;
	if (is_left_over(channel, &of->verdict))
		return skip_message(of);
	of->phase = CONNECT;
	return 1;
}

/* At least as long as the attempt took, so that a thread has time for other channels. */
static void lengthen_pause(struct pier_handshake *of, int64_t took_ns)
{
	int took_ms = (int)(took_ns / 1000000);
	int left_ms = pier_poll_timeout(of->stream.deadline);

	if (of->pause_ms < took_ms)
		of->pause_ms = took_ms < left_ms ? took_ms : left_ms;
}

/* A failure is told to the peer like success. */
static int connect_and_tell(struct pier_channel *channel)
{
	struct pier_handshake *of = channel->handshake;
	int error = broken_pipe(&of->stream);
	int64_t began = pier_now();

	if (error)
		return error;
	error = pier_connect_step(channel, &of->peer, of->stream.deadline, &of->pause_ms);
	if (error == 1) {
		of->stream.wanted[0].fd = of->stream.wanted[1].fd = -1;
		lengthen_pause(of, pier_now() - began);
		return 0;
	}
	of->error = error;
	snprintf(of->sentence, sizeof(of->sentence), "%s", pier_error_message());
	write_verdict(&of->out, error, of->peer.generation);
	of->phase = EXCHANGE_VERDICTS;
	return 1;
}

/*
 * Also after a failure here: closing a TCP socket with the peer's verdict unread sends
 * a reset, which overtakes our verdict.
 */
static int exchange_verdicts(struct pier_channel *channel)
{
	struct pier_handshake *of = channel->handshake;
	int result = exchange_messages(&of->stream, &of->out, &of->verdict);

	if (result == 1)
		result = read_verdict(channel, &of->verdict);
	else if (result == 0)
		return 0;
	if (of->error)
		return pier_fail(-of->error, "%s", of->sentence);
	if (!result)
		result = broken_pipe(&of->stream);
	of->phase = CONNECTED;
	return result ? result : 1;
}

/* The peer could not recognise a verdict in the middle of a message. */
static int end_handshake(struct pier_channel *channel, int error)
{
	struct pier_handshake *of = channel->handshake;

	if (error && of->phase < EXCHANGE_VERDICTS && of->out.have == of->out.length)
		refuse_peer(&of->stream, error);
	if (error)
		channel->state = PIER_CHANNEL_FAILED;
	free(of);
	channel->handshake = NULL;
	pier_update_ready(channel);
	return error ? error : 1;
}

static int take_steps(struct pier_channel *channel)
{
	static int (*const phases[])(struct pier_channel *) = {
		[RECEIVE_ENDPOINT] = receive_endpoint,
		[RECEIVE_EARLY_VERDICT] = receive_early_verdict,
		[CONNECT] = connect_and_tell,
		[EXCHANGE_VERDICTS] = exchange_verdicts,
	};
	struct pier_handshake *of = channel->handshake;
	int result = 1;

	while (result == 1 && of->phase != CONNECTED)
		result = phases[of->phase](channel);
	return result == 0 ? 0 : end_handshake(channel, result == 1 ? 0 : result);
}

/* poll(2) ignores a negative fd: the peer would seem silent. */
static int check_fd(const char *name, int fd)
{
	if (fd >= 0 && fcntl(fd, F_GETFD) >= 0)
		return 0;
	return pier_fail(EBADF, "%s %d is not open", name, fd);
}

static int check_start(const struct pier_channel *channel, int read_fd, int write_fd)
{
	int error;

	if (channel->state != PIER_CHANNEL_PREPARED)
		return pier_fail(EISCONN,
				 "the channel was connected before: reset it first");
	if (channel->handshake)
		return pier_fail(EBUSY, "a handshake of the channel is in progress");
	if (channel->broken)
		return pier_fail_broken(channel);
	error = check_fd("read_fd", read_fd);
	return error ? error : check_fd("write_fd", write_fd);
}

int pier_channel_handshake_start(struct pier_channel *channel, int read_fd, int write_fd,
				 int timeout_ms)
{
	PIER_REFUSE_NULL(channel);
	struct pier_handshake *made;
	int error = pier_check_process(&channel->object);

	if (!error)
		error = pier_channel_timeout(channel, timeout_ms, &timeout_ms);
	if (!error)
		error = pier_check_owner(&channel->object, &channel->pd->object,
					 "connecting a channel");
	if (!error)
		error = check_start(channel, read_fd, write_fd);
	if (error)
		return error;
	made = calloc(1, sizeof(*made));
	if (!made)
		return pier_fail(ENOMEM, "no memory for a handshake");
	made->stream.read_fd = read_fd;
	made->stream.write_fd = write_fd;
	made->stream.deadline = pier_deadline(timeout_ms);
	made->stream.wanted[0].events = POLLIN;
	made->stream.wanted[1].events = POLLOUT;
	channel->handshake = made;
	error = write_endpoint(channel, &made->out);
	return error ? end_handshake(channel, error) : 0;
}

int pier_channel_handshake_step(struct pier_channel *channel, struct pollfd *ret_fds,
				int *ret_timeout_ms)
{
	PIER_REFUSE_NULL(channel, ret_fds, ret_timeout_ms);
	struct pier_handshake *of = channel->handshake;
	int result = pier_check_process(&channel->object);

	if (!result && !of)
		result = pier_fail(EINVAL, "no handshake of the channel is in progress");
	if (result)
		return result;
	result = take_steps(channel);
	if (result == 0) {
		memcpy(ret_fds, of->stream.wanted, sizeof(of->stream.wanted));
		*ret_timeout_ms = of->phase == CONNECT
					  ? of->pause_ms
					  : pier_poll_timeout(of->stream.deadline);
	}
	return result;
}

int pier_channel_handshake(struct pier_channel *channel, int read_fd, int write_fd,
			   int timeout_ms)
{
	int error = pier_channel_handshake_start(channel, read_fd, write_fd, timeout_ms);
	struct pollfd fds[2];
	int result;

	if (error)
		return error;
	for (;;) {
		result = pier_channel_handshake_step(channel, fds, &timeout_ms);
		if (result)
			return result == 1 ? 0 : result;
		result = pier_sleep(fds, 2, timeout_ms);
		if (result == -EINTR)
			return end_handshake(channel, result);
		if (result < 0) {
			pier_fail(-result, "poll the fds of a handshake: %s",
				  strerror(-result));
			return end_handshake(channel, result);
		}
	}
}
