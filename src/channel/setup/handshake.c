/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "channel/channel.h"
#include "connect.h"
#include "stream.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/wire.h"

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
	struct pier_message verdict;

	write_verdict(&verdict, error, 0);
	pier_try_send_message(stream, &verdict);
	return error;
}

static int broken_pipe(const struct pier_stream *stream)
{
	return stream->write_broken
		       ? pier_fail(ECONNRESET,
				   "the peer closed the connection in the handshake")
		       : 0;
}

/*
 * Receive the peer's endpoint. If its verdict follows at once, receive that too: it may
 * belong to a handshake that the peer gave up.
 */
static int receive_endpoint(struct pier_channel *channel, struct pier_stream *stream,
			    struct pier_message *out, struct pier_endpoint *ret_peer,
			    struct pier_message *ret_verdict)
{
	struct pier_message in;
	int error;

	do {
		do {
			in.have = 0;
			error = pier_exchange_messages(stream, out, &in);
		} while (!error && is_left_over(channel, &in));
		if (!error)
			error = read_endpoint(channel, &in, ret_peer);
		ret_verdict->have = 0;
		if (error || !pier_stream_is_readable(stream))
			return error;
		error = pier_exchange_messages(stream, out, ret_verdict);
	} while (!error && is_left_over(channel, ret_verdict));
	return error;
}

static int exchange_endpoints(struct pier_channel *channel, struct pier_stream *stream,
			      struct pier_endpoint *ret_peer,
			      struct pier_message *ret_verdict)
{
	struct pier_message out;
	int error = write_endpoint(channel, &out);

	if (error)
		return refuse_peer(stream, error);
	error = receive_endpoint(channel, stream, &out, ret_peer, ret_verdict);
	/* The peer could not recognise a verdict in the middle of a message. */
	if (error && out.have == out.length)
		return refuse_peer(stream, error);
	return error ? error : broken_pipe(stream);
}

/*
 * Also after a failure here: closing a TCP socket with the peer's verdict unread sends
 * a reset, which overtakes our verdict.
 */
static int exchange_verdicts(struct pier_channel *channel, struct pier_stream *stream,
			     int verdict, uint32_t peer_generation,
			     struct pier_message *in)
{
	struct pier_message out;
	int error;

	write_verdict(&out, verdict, peer_generation);
	error = pier_exchange_messages(stream, &out, in);
	if (!error)
		error = read_verdict(channel, in);
	return error ? error : broken_pipe(stream);
}

static int connect_and_tell(struct pier_channel *channel, struct pier_stream *stream,
			    const struct pier_endpoint *peer,
			    struct pier_message *verdict)
{
	char sentence[512];
	int error = pier_connect_until(channel, peer, stream->deadline);

	if (!error)
		return exchange_verdicts(channel, stream, 0, peer->generation, verdict);
	snprintf(sentence, sizeof(sentence), "%s", pier_error_message());
	exchange_verdicts(channel, stream, error, peer->generation, verdict);
	return pier_fail(-error, "%s", sentence);
}

/* poll(2) ignores a negative fd: the peer would seem silent. */
static int check_fd(const char *name, int fd)
{
	if (fd >= 0 && fcntl(fd, F_GETFD) >= 0)
		return 0;
	return pier_fail(EBADF, "%s %d is not open", name, fd);
}

int pier_channel_handshake(struct pier_channel *channel, int read_fd, int write_fd,
			   int timeout_ms)
{
	struct pier_stream stream = { .read_fd = read_fd, .write_fd = write_fd };
	struct pier_message verdict;
	struct pier_endpoint peer;
	int error = pier_check_process(&channel->object);

	if (!error)
		error = pier_channel_timeout(channel, timeout_ms, &timeout_ms);
	if (error)
		return error;
	if (channel->state != PIER_CHANNEL_PREPARED)
		return pier_fail(EISCONN,
				 "the channel was connected before: reset it first");
	error = check_fd("read_fd", read_fd);
	if (!error)
		error = check_fd("write_fd", write_fd);
	if (error)
		return error;
	stream.deadline = pier_deadline(timeout_ms);
	error = exchange_endpoints(channel, &stream, &peer, &verdict);
	if (!error)
		error = connect_and_tell(channel, &stream, &peer, &verdict);
	if (error)
		channel->state = PIER_CHANNEL_FAILED;
	pier_update_ready(channel);
	return error;
}
