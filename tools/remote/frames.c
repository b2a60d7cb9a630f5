/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "frames.h"
#include "signals.h"
#include "units.h"

enum {
	HEADER_SIZE = 8,
};

const char *control_peer_name(const struct control *control)
{
	return control->peer ? control->peer : "the other process";
}

int control_check_signal(struct control *control)
{
	return check_signals(control->signal_fd, control->failure);
}

uint64_t deadline_after(uint32_t ms)
{
	return now_ns() + (uint64_t)ms * 1000000;
}

/* Wait until fd is ready. Fails on a signal and at the deadline. */
static int wait_fd(struct control *control, int fd, short events, uint64_t deadline)
{
	for (;;) {
		struct pollfd fds[2] = {
			{ .fd = control->signal_fd, .events = POLLIN },
			{ .fd = fd, .events = events },
		};
		uint64_t now = now_ns();
		int left = now < deadline ? (int)((deadline - now) / 1000000) + 1 : 0;

		if (poll(fds, 2, left) < 0 && errno != EINTR)
			return fail(control->failure, EXIT_PEER, "poll: %s",
				    strerror(errno));
		if (fds[0].revents && control_check_signal(control) < 0)
			return -1;
		if (fds[1].revents)
			return 0;
		if (left == 0)
			return fail(control->failure, EXIT_PEER,
				    "%s did not respond for %g s (see --timeout)",
				    control_peer_name(control),
				    control->timeout_ms / 1e3);
	}
}

int fail_peer_closed(struct control *control)
{
	control->peer_closed = true;
	return fail(control->failure, EXIT_PEER, "%s ended before %s was complete",
		    control_peer_name(control), control->protocol->task);
}

ssize_t read_some(struct control *control, uint8_t *ret_data, size_t size,
		  uint64_t deadline)
{
	ssize_t count;

	do {
		if (wait_fd(control, control->in, POLLIN, deadline) < 0)
			return -1;
		count = read(control->in, ret_data, size);
	} while (count < 0 && (errno == EINTR || errno == EAGAIN));
	if (count > 0)
		return count;
	return fail_peer_closed(control);
}

int read_all(struct control *control, uint8_t *ret_data, size_t size, uint64_t deadline)
{
	while (size > 0) {
		ssize_t count = read_some(control, ret_data, size, deadline);

		if (count < 0)
			return -1;
		ret_data += count;
		size -= (size_t)count;
	}
	return 0;
}

/*
 * A pipe that polls as writable accepts PIPE_BUF bytes without blocking (pipe(7)). The
 * descriptors stay blocking: O_NONBLOCK would also affect other processes that share
 * them.
 */
static int write_all(struct control *control, const uint8_t *data, size_t size)
{
	uint64_t deadline = deadline_after(control->timeout_ms);

	while (size > 0) {
		ssize_t count;

		if (wait_fd(control, control->out, POLLOUT, deadline) < 0)
			return -1;
		count = write(control->out, data, size < PIPE_BUF ? size : PIPE_BUF);
		if (count < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (count < 0)
			return 1;
		data += count;
		size -= (size_t)count;
	}
	return 0;
}

static int add_to_outbox(struct control *control, const uint8_t *data, size_t size)
{
	struct outbox *outbox = control->outbox;
	size_t needed = outbox->length + size;
	uint8_t *grown;

	if (needed > outbox->size) {
		grown = realloc(outbox->data, 2 * needed);
		if (!grown)
			return fail(control->failure, EXIT_FILE, "out of memory");
		outbox->data = grown;
		outbox->size = 2 * needed;
	}
	memcpy(outbox->data + outbox->length, data, size);
	outbox->length = needed;
	return 0;
}

void control_flush(struct control *control)
{
	struct pollfd pollfd = { .fd = control->out, .events = POLLOUT };
	struct outbox *outbox = control->outbox;
	size_t done = 0;

	while (done < outbox->length && poll(&pollfd, 1, 0) == 1) {
		size_t left = outbox->length - done;
		ssize_t count = write(control->out, outbox->data + done,
				      left < PIPE_BUF ? left : PIPE_BUF);

		/* Nobody reads it any more. */
		if (count < 0 && errno != EINTR && errno != EAGAIN)
			done = outbox->length;
		else if (count > 0)
			done += (size_t)count;
	}
	outbox->length -= done;
	if (done > 0)
		memmove(outbox->data, outbox->data + done, outbox->length);
}

int put_out(struct control *control, const uint8_t *data, size_t size)
{
	return control->outbox ? add_to_outbox(control, data, size)
			       : write_all(control, data, size);
}

static int send_frame(struct control *control, uint32_t type,
		      const struct wire_writer *writer)
{
	size_t length = writer ? writer->length : 0;
	struct wire_writer header = { .length = 0 };
	int result;

	if (writer && writer->overflow)
		return fail(control->failure, EXIT_PEER,
			    "a control message of type %u is too long", type);
	put_u32(&header, (uint32_t)length);
	put_u32(&header, type);
	result = put_out(control, header.data, header.length);
	return result == 0 && length ? put_out(control, writer->data, length) : result;
}

/* `out` and the lock are all that the threads of the two conversations share. */
static int send_inside(struct control *carrier, struct control *control, uint32_t type,
		       const struct wire_writer *writer)
{
	struct wire_writer outer = { .length = 0 };
	struct control pipe = *control;
	int result = 1;

	put_u32(&outer, type);
	if (writer)
		put_bytes(&outer, writer->data, writer->length);
	outer.overflow |= writer && writer->overflow;
	pthread_mutex_lock(&carrier->onward->lock);
	pipe.out = carrier->out;
	if (pipe.out >= 0)
		result = send_frame(&pipe, FRAME_ONWARD, &outer);
	pthread_mutex_unlock(&carrier->onward->lock);
	return result;
}

int try_send(struct control *control, uint32_t type, const struct wire_writer *writer)
{
	int result;

	if (control->carrier)
		return send_inside(control->carrier, control, type, writer);
	if (!control->onward)
		return send_frame(control, type, writer);
	pthread_mutex_lock(&control->onward->lock);
	result = send_frame(control, type, writer);
	pthread_mutex_unlock(&control->onward->lock);
	return result;
}

/* If the other thread has ended, the bytes are lost. */
static void write_onward(const struct onward *onward, const uint8_t *data, size_t length)
{
	while (length > 0) {
		ssize_t count = write(onward->to, data, length);

		if (count < 0 && errno == EINTR)
			continue;
		if (count < 0)
			return;
		data += count;
		length -= (size_t)count;
	}
}

static void pass_onward(const struct onward *onward, uint32_t type,
			const uint8_t *payload, size_t length)
{
	struct wire_writer header = { .length = 0 };

	put_u32(&header, (uint32_t)length);
	put_u32(&header, type);
	write_onward(onward, header.data, header.length);
	write_onward(onward, payload, length);
}

/* Frames that concern no caller. */
static int handle_frame(struct control *control, struct frame *frame)
{
	struct wire_reader reader = read_frame(frame);
	uint32_t type;

	/* The process that has an outbox sends pings, and expects none. */
	if (frame->type == FRAME_PING && !control->outbox) {
		frame->type = FRAME_NONE;
		return try_send(control, FRAME_PONG, NULL) < 0 ? -1 : 0;
	}
	if (frame->type == FRAME_KEEPALIVE && control->onward)
		pass_onward(control->onward, FRAME_KEEPALIVE, NULL, 0);
	if (frame->type != FRAME_ONWARD || !control->onward)
		return 0;
	type = get_u32(&reader);
	if (reader.bad)
		return fail_unexpected_frame(control, frame);
	frame->type = FRAME_NONE;
	pass_onward(control->onward, type, frame->payload + sizeof(type),
		    frame->length - sizeof(type));
	return 0;
}

int fail_unexpected_frame(struct control *control, const struct frame *frame)
{
	return fail(control->failure, EXIT_PEER,
		    "%s sent an unexpected control message (type %u, %u bytes)",
		    control_peer_name(control), frame->type, frame->length);
}

/* Adopt the other side's failure. Its text is escaped when it is printed. */
static int fail_with_peer_failure(struct control *control, const struct frame *frame)
{
	struct wire_reader reader = { frame->payload, frame->length, false };
	uint32_t status = get_u32(&reader);
	char text[sizeof(control->failure->text)];

	get_string(&reader, text, sizeof(text));
	if (!wire_complete(&reader) || status == 0 || status > 255)
		return fail_unexpected_frame(control, frame);
	/* A Ctrl-C reaches both sides; report this side's signal. */
	if (status > EXIT_SIGNAL && control_check_signal(control) < 0)
		return -1;
	control->failure_from_peer = true;
	return fail(control->failure, (int)status, "%s%s%s",
		    control->peer ? control->peer : "", control->peer ? ": " : "", text);
}

static int take_header(struct control *control, struct frame *frame)
{
	struct wire_reader reader = { frame->payload, HEADER_SIZE, false };

	frame->length = get_u32(&reader);
	frame->type = get_u32(&reader);
	return frame->length > sizeof(frame->payload) || frame->type == FRAME_NONE
		       ? fail_unexpected_frame(control, frame)
		       : 0;
}

int receive_part(struct control *control, struct frame *frame, size_t *have,
		 uint64_t deadline)
{
	bool in_header = *have < HEADER_SIZE;
	size_t at = in_header ? *have : *have - HEADER_SIZE;
	size_t end = in_header ? (size_t)HEADER_SIZE : frame->length;
	ssize_t count = read_some(control, frame->payload + at, end - at, deadline);

	if (count < 0)
		return -1;
	*have += (size_t)count;
	if (*have < HEADER_SIZE)
		return 0;
	if (in_header && take_header(control, frame) < 0)
		return -1;
	if (*have < HEADER_SIZE + frame->length)
		return 0;
	*have = 0;
	if (frame->type == FRAME_ERROR)
		return fail_with_peer_failure(control, frame);
	return handle_frame(control, frame) < 0 ? -1 : 1;
}

int receive_until(struct control *control, struct frame *ret_frame, uint64_t deadline)
{
	size_t have = 0;
	int result;

	do
		result = receive_part(control, ret_frame, &have, deadline);
	while (result == 0);
	return result < 0 ? -1 : 0;
}
