/* SPDX-License-Identifier: BSD-3-Clause */
#include <arpa/inet.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/unit/provider/soft/soft_fixture.h"
#include "provider/soft/limits.h"
#include "provider/soft/link/auth.h"
#include "provider/soft/link/seal.h"
#include "relay.h"
#include "core/wire.h"

enum {
	PATIENCE_MS = 30000
};

static int make_listener(uint16_t *ret_port)
{
	struct sockaddr_in name = { .sin_family = AF_INET };
	socklen_t size = sizeof(name);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&name, size), 0);
	assert_int_equal(listen(fd, 1), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&name, &size), 0);
	*ret_port = ntohs(name.sin_port);
	return fd;
}

void relay_listen(struct relay *relay, uint16_t *ret_ports)
{
	for (int i = 0; i < 2; i++)
		relay->listeners[i] = make_listener(&ret_ports[i]);
}

static int dial(uint16_t port)
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_port = htons(port) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&name, sizeof(name)) == 0)
		return fd;
	close(fd);
	return -1;
}

static bool write_all(int fd, const uint8_t *bytes, size_t length)
{
	while (length > 0) {
		ssize_t sent = send(fd, bytes, length, MSG_NOSIGNAL);

		if (sent <= 0)
			return false;
		bytes += sent;
		length -= (size_t)sent;
	}
	return true;
}

/* Whether it all passes on; false: the relay hangs up. */
static bool pass_bytes(struct relay *relay, struct relay_stream *stream, size_t length)
{
	uint64_t end = stream->position + length;
	bool here = relay->at >= stream->position && relay->at < end &&
		    relay->from_caller == (stream == &relay->streams[0]);
	size_t index = here ? relay->at - stream->position : 0;

	if (here && relay->attack == RELAY_FLIP) {
		stream->bytes[index] ^= (uint8_t)(1u << relay->bit);
		relay->attacked = true;
	}
	if (here && relay->attack == RELAY_CUT) {
		relay->attacked = true;
		write_all(stream->to, stream->bytes, index);
		return false;
	}
	stream->position = end;
	stream->pending = 0;
	return write_all(stream->to, stream->bytes, length);
}

static bool attack_record(struct relay *relay, struct relay_stream *stream,
			  uint8_t *record, size_t length)
{
	relay->attacked = true;
	switch (relay->attack) {
	case RELAY_REPLAY:
		return write_all(stream->to, record, length) &&
		       write_all(stream->to, record, length);
	case RELAY_REORDER:
		memcpy(stream->holds, record, length);
		stream->held = length;
		return true;
	case RELAY_DROP:
		return true;
	case RELAY_TRUNCATE:
		write_all(stream->to, record, length);
		return false;
	case RELAY_REFLECT:
		return write_all(stream->from, record, length) &&
		       write_all(stream->to, record, length);
	case RELAY_LENGTHEN:
		pier_put_le32(record, SOFT_MAX_RECORD + SOFT_RECORD_TAG_SIZE + 1);
		return write_all(stream->to, record, length);
	default:
		return write_all(stream->to, record, length);
	}
}

static bool pass_record(struct relay *relay, struct relay_stream *stream, uint8_t *record,
			size_t length)
{
	size_t held = stream->held;

	if (relay->from_caller == (stream == &relay->streams[0]) &&
	    stream->records++ == relay->at)
		return attack_record(relay, stream, record, length);
	stream->held = 0;
	return write_all(stream->to, record, length) &&
	       write_all(stream->to, stream->holds, held);
}

/* The records that are complete. */
static bool pass_records(struct relay *relay, struct relay_stream *stream)
{
	uint8_t *next = stream->bytes;
	size_t left = stream->pending;

	while (left >= SOFT_RECORD_LENGTH_SIZE) {
		size_t length = SOFT_RECORD_LENGTH_SIZE + pier_get_le32(next);

		if (length > sizeof(stream->bytes))
			return false;
		if (length > left)
			break;
		if (!pass_record(relay, stream, next, length))
			return false;
		next += length;
		left -= length;
	}
	memmove(stream->bytes, next, left);
	stream->pending = left;
	return true;
}

static bool pass_handshake(struct relay_stream *stream)
{
	size_t length = stream->pending < stream->handshake ? stream->pending
							    : stream->handshake;

	stream->handshake -= length;
	stream->pending -= length;
	if (!write_all(stream->to, stream->bytes, length))
		return false;
	memmove(stream->bytes, stream->bytes + length, stream->pending);
	return true;
}

/* False: one of the two has hung up, or the relay does. */
static bool pump(struct relay *relay, struct relay_stream *stream)
{
	uint8_t *bytes = stream->bytes + stream->pending;
	ssize_t received = recv(stream->from, bytes,
				sizeof(stream->bytes) - stream->pending, 0);

	if (received <= 0)
		return false;
	if (relay->needle &&
	    memmem(bytes, (size_t)received, relay->needle, strlen(relay->needle)))
		relay->found = true;
	stream->pending += (size_t)received;
	if (stream->handshake > 0 && !pass_handshake(stream))
		return false;
	if (stream->handshake > 0 || stream->pending == 0)
		return true;
	return relay->attack > RELAY_CUT ? pass_records(relay, stream)
					 : pass_bytes(relay, stream, stream->pending);
}

static void pump_all(struct relay *relay)
{
	struct pollfd waited[2];

	for (;;) {
		for (int i = 0; i < 2; i++)
			waited[i] = (struct pollfd){ .fd = relay->streams[i].from,
						     .events = POLLIN };
		if (poll(waited, 2, PATIENCE_MS) <= 0)
			return;
		for (int i = 0; i < 2; i++) {
			if (waited[i].revents && !pump(relay, &relay->streams[i]))
				return;
		}
	}
}

static void *run(void *argument)
{
	struct relay *relay = argument;
	struct pollfd waited[2] = { { .fd = relay->listeners[0], .events = POLLIN },
				    { .fd = relay->listeners[1], .events = POLLIN } };
	int caller, listener, index;

	if (poll(waited, 2, PATIENCE_MS) <= 0)
		return NULL;
	index = waited[0].revents ? 0 : 1;
	caller = accept4(relay->listeners[index], NULL, NULL, SOCK_CLOEXEC);
	listener = dial(relay->targets[index]);
	if (caller >= 0 && listener >= 0) {
		relay->streams[0] = (struct relay_stream){
			.from = caller,
			.to = listener,
			.handshake = SOFT_HELLO_SIZE + SOFT_PROOF_SIZE,
		};
		relay->streams[1] = (struct relay_stream){
			.from = listener,
			.to = caller,
			.handshake = SOFT_CHALLENGE_SIZE + SOFT_WELCOME_SIZE,
		};
		pump_all(relay);
	}
	close(caller);
	close(listener);
	return NULL;
}

void relay_start(struct relay *relay)
{
	assert_int_equal(pthread_create(&relay->thread, NULL, run, relay), 0);
}

void relay_join(struct relay *relay)
{
	pthread_join(relay->thread, NULL);
	for (int i = 0; i < 2; i++)
		close(relay->listeners[i]);
}
