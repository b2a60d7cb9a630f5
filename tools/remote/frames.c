/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
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
int try_write(struct control *control, const uint8_t *data, size_t size)
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
	result = try_write(control, header.data, header.length);
	return result == 0 && length ? try_write(control, writer->data, length) : result;
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

	if (frame->type == FRAME_PING) {
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

int receive_until(struct control *control, struct frame *ret_frame, uint64_t deadline)
{
	uint8_t header[HEADER_SIZE];
	struct wire_reader reader = { header, sizeof(header), false };

	if (read_all(control, header, sizeof(header), deadline) < 0)
		return -1;
	ret_frame->length = get_u32(&reader);
	ret_frame->type = get_u32(&reader);
	if (ret_frame->length > sizeof(ret_frame->payload) ||
	    ret_frame->type == FRAME_NONE)
		return fail_unexpected_frame(control, ret_frame);
	if (read_all(control, ret_frame->payload, ret_frame->length, deadline) < 0)
		return -1;
	return ret_frame->type == FRAME_ERROR ? fail_with_peer_failure(control, ret_frame)
					      : handle_frame(control, ret_frame);
}
