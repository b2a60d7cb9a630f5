/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "control.h"
#include "units.h"

enum {
	HEADER_SIZE = 8,
	PREAMBLE_SIZE = 16,
	/* All magic numbers begin with "\x89PIER". */
	MAGIC_COMMON = 5,
	/* How long to wait for a failure report from the other side. */
	PEER_REASON_MS = 1000,
	/* How long the receiver may take to name its file. Below EXIT_WAIT_MS in
	 * start.c. */
	NAMING_MS = 1500,
};

int open_signals(struct failure *failure)
{
	static const int ending[] = { SIGINT, SIGTERM, SIGHUP };
	struct sigaction action;
	sigset_t set;
	size_t i;
	int fd;

	sigemptyset(&set);
	/* signalfd(2) would deliver an ignored signal if it were blocked: respect
	 * nohup(1). */
	for (i = 0; i < sizeof(ending) / sizeof(ending[0]); i++)
		if (sigaction(ending[i], NULL, &action) == 0 &&
		    action.sa_handler != SIG_IGN)
			sigaddset(&set, ending[i]);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN);
	fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (fd < 0)
		return fail(failure, EXIT_FILE, "signalfd: %s", strerror(errno));
	return fd;
}

const char *control_peer_name(const struct control *control)
{
	return control->peer ? control->peer : "the other process";
}

int control_check_signal(struct control *control)
{
	struct signalfd_siginfo info;

	if (read(control->signal_fd, &info, sizeof(info)) != sizeof(info))
		return 0;
	return fail(control->failure, EXIT_SIGNAL + (int)info.ssi_signo, "%s",
		    info.ssi_signo == SIGINT ? "interrupted" : "terminated by a signal");
}

static uint64_t deadline_after(uint32_t ms)
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

/* These return -1. */
static int fail_peer_closed(struct control *control)
{
	control->peer_closed = true;
	return fail(control->failure, EXIT_PEER, "%s ended before %s was complete",
		    control_peer_name(control), control->protocol->task);
}

/* Returns the number of bytes, 1 to size; or -1. */
static ssize_t read_some(struct control *control, uint8_t *ret_data, size_t size,
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

/*
 * These return 0; 1 if the other side has closed its pipe; or -1. Where there is an
 * outbox, they only put the bytes into it.
 */
static int put_out(struct control *control, const uint8_t *data, size_t size)
{
	return control->outbox ? add_to_outbox(control, data, size)
			       : write_all(control, data, size);
}

/*
 * A frame up to PIPE_BUF is one write: if a signal interrupted it, the other side could
 * not read the failure that follows.
 */
static int send_frame(struct control *control, uint32_t type,
		      const struct wire_writer *writer)
{
	size_t length = writer ? writer->length : 0, first;
	struct wire_writer frame = { .length = 0 };
	int result;

	if (writer && writer->overflow)
		return fail(control->failure, EXIT_PEER,
			    "a control message of type %u is too long", type);
	put_u32(&frame, (uint32_t)length);
	put_u32(&frame, control->carrier ? type | FRAME_ONWARD : type);
	first = length < PIPE_BUF - HEADER_SIZE ? length : PIPE_BUF - HEADER_SIZE;
	if (first)
		put_bytes(&frame, writer->data, first);
	result = put_out(control, frame.data, frame.length);
	return result == 0 && first < length
		       ? put_out(control, writer->data + first, length - first)
		       : result;
}

/* `out` and the lock are all that the threads of two conversations share. */
static int try_send(struct control *control, uint32_t type,
		    const struct wire_writer *writer)
{
	struct control *carrier = control->carrier ? control->carrier : control;
	struct control pipe = *control;
	int result = 1;

	if (!carrier->onward)
		return send_frame(control, type, writer);
	pthread_mutex_lock(&carrier->onward->lock);
	pipe.out = carrier->out;
	if (pipe.out >= 0)
		result = send_frame(&pipe, type, writer);
	pthread_mutex_unlock(&carrier->onward->lock);
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

static int fail_unexpected_frame(struct control *control, const struct frame *frame)
{
	return fail(control->failure, EXIT_PEER,
		    "%s sent an unexpected control message (type %u, %u bytes)",
		    control_peer_name(control), frame->type, frame->length);
}

/* Frames that concern no caller. */
static int handle_frame(struct control *control, struct frame *frame)
{
	/* The process that has an outbox sends pings, and expects none. */
	if (frame->type == FRAME_PING && !control->outbox) {
		frame->type = FRAME_NONE;
		return try_send(control, FRAME_PONG, NULL) < 0 ? -1 : 0;
	}
	if (frame->type == FRAME_KEEPALIVE && control->onward)
		pass_onward(control->onward, FRAME_KEEPALIVE, NULL, 0);
	if (!(frame->type & FRAME_ONWARD) || !control->onward)
		return 0;
	pass_onward(control->onward, frame->type & ~(uint32_t)FRAME_ONWARD,
		    frame->payload, frame->length);
	frame->type = FRAME_NONE;
	return 0;
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

/*
 * Read more of a frame, of which `have` bytes have arrived; the first of them are its
 * header. Returns 1, with *have 0 again, when it is complete; or 0.
 */
static int receive_part(struct control *control, struct frame *frame, size_t *have,
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

/* The next frame; one that reports a failure is a failure. */
static int receive_until(struct control *control, struct frame *ret_frame,
			 uint64_t deadline)
{
	size_t have = 0;
	int result;

	do
		result = receive_part(control, ret_frame, &have, deadline);
	while (result == 0);
	return result < 0 ? -1 : 0;
}

int control_fail_invalid(const struct control *control, const char *what)
{
	return fail(control->failure, EXIT_PEER, "%s sent an invalid %s",
		    control_peer_name(control), what);
}

/* The other side may have reported a failure before it closed its pipe. */
static int fail_broken_pipe(struct control *control)
{
	control_read_peer_failure(control);
	return fail_peer_closed(control);
}

/* Report the first line of the data that arrived instead of the preamble. */
static int fail_bad_preamble(struct control *control, const uint8_t *preamble,
			     size_t length)
{
	struct pollfd pollfd = { .fd = control->in, .events = POLLIN };
	uint8_t noise[64] = { 0 };
	ssize_t more;

	memcpy(noise, preamble, length);
	if (poll(&pollfd, 1, 0) == 1) {
		more = read(control->in, noise + length, sizeof(noise) - 1 - length);
		length += more > 0 ? (size_t)more : 0;
	}
	noise[length] = '\0';
	noise[strcspn((const char *)noise, "\r\n")] = '\0';
	if (memcmp(noise, control->protocol->magic, MAGIC_COMMON) == 0)
		return fail(control->failure, EXIT_PEER,
			    "%s runs another command of pier, not 'pier %s'%s",
			    control_peer_name(control), control->protocol->command,
			    control->by_hand ? ""
					     : ": check the forced command of the key "
					       "there (sshd(8))");
	return fail(control->failure, EXIT_PEER,
		    "%s sent something other than the %s protocol, beginning with "
		    "\"%s\": %s",
		    control_peer_name(control), control->protocol->name,
		    (const char *)noise,
		    control->by_hand ? "another program uses the port"
				     : "the start-up files of the shell there must not "
				       "print anything");
}

/* Of which not all may have arrived yet. */
static int check_preamble(struct control *control, const uint8_t *preamble, size_t length)
{
	const struct control_protocol *protocol = control->protocol;
	struct wire_reader reader = { preamble + CONTROL_MAGIC_SIZE, 8, false };
	uint32_t version;

	if (memcmp(preamble, protocol->magic,
		   length < CONTROL_MAGIC_SIZE ? length : CONTROL_MAGIC_SIZE) != 0)
		return fail_bad_preamble(control, preamble, length);
	if (length < PREAMBLE_SIZE)
		return 0;
	version = get_u32(&reader);
	if (version != protocol->version)
		return fail(control->failure, EXIT_PEER,
			    "%s uses version %u of the %s protocol, this side uses "
			    "version %u: install the same version of pier on both",
			    control_peer_name(control), version, protocol->name,
			    protocol->version);
	control->preamble_read = true;
	return 0;
}

/* Reads once. */
static int read_preamble(struct control *control, uint8_t *preamble, size_t *length,
			 uint64_t deadline)
{
	ssize_t count = read_some(control, preamble + *length, PREAMBLE_SIZE - *length,
				  deadline);

	if (count < 0)
		return -1;
	*length += (size_t)count;
	return check_preamble(control, preamble, *length);
}

int control_send_preamble(struct control *control)
{
	struct wire_writer writer = { .length = 0 };
	int result;

	put_bytes(&writer, control->protocol->magic, CONTROL_MAGIC_SIZE);
	put_u32(&writer, control->protocol->version);
	put_u32(&writer, 0);
	result = put_out(control, writer.data, writer.length);
	return result > 0 ? fail_broken_pipe(control) : result;
}

int control_exchange_preambles(struct control *control)
{
	uint64_t deadline = deadline_after(control->timeout_ms);
	uint8_t preamble[PREAMBLE_SIZE];
	size_t length = 0;
	int result = control_send_preamble(control);

	while (result == 0 && !control->preamble_read)
		result = read_preamble(control, preamble, &length, deadline);
	return result;
}

int control_send(struct control *control, uint32_t type, const struct wire_writer *writer)
{
	int result = try_send(control, type, writer);

	return result > 0 ? fail_broken_pipe(control) : result;
}

int control_send_if_open(struct control *control, uint32_t type,
			 const struct wire_writer *writer)
{
	return try_send(control, type, writer) < 0 ? -1 : 0;
}

int control_receive(struct control *control, struct frame *ret_frame)
{
	return receive_until(control, ret_frame, deadline_after(control->timeout_ms));
}

int control_receive_part(struct control *control, struct inbox *inbox)
{
	struct frame *frame = &inbox->frame;

	if (control->preamble_read)
		return receive_part(control, frame, &inbox->have, 0);
	if (read_preamble(control, frame->payload, &inbox->have, 0) < 0)
		return -1;
	if (!control->preamble_read)
		return 0;
	inbox->have = 0;
	frame->type = FRAME_NONE;
	return 1;
}

int control_expect(struct control *control, uint32_t type, struct frame *ret_frame)
{
	do {
		if (control_receive(control, ret_frame) < 0)
			return -1;
	} while (ret_frame->type == FRAME_KEEPALIVE || ret_frame->type == FRAME_NONE);
	if (ret_frame->type != type)
		return fail_unexpected_frame(control, ret_frame);
	return 0;
}

/* Whatever it contains. */
static int skip_preamble(struct control *control, uint64_t deadline)
{
	uint8_t ignored[PREAMBLE_SIZE];
	ssize_t count;

	for (size_t left = sizeof(ignored); left > 0; left -= (size_t)count) {
		count = read_some(control, ignored, left, deadline);
		if (count < 0)
			return -1;
	}
	return 0;
}

void control_read_peer_failure(struct control *control)
{
	struct failure none = { 0 }, *ours = control->failure;
	uint64_t deadline = deadline_after(PEER_REASON_MS);
	struct frame frame;
	int result = 0;

	control->failure = &none;
	if (!control->preamble_read)
		result = skip_preamble(control, deadline);
	while (result == 0)
		result = receive_until(control, &frame, deadline);
	control->failure = ours;
	if (control->failure_from_peer || control->peer_closed ||
	    none.status > EXIT_SIGNAL)
		fail(ours, none.status, "%s", none.text);
}

bool control_try_sending_failure(struct control *control)
{
	struct failure *ours = control->failure;
	struct failure ignored = { 0 };
	struct wire_writer writer = { .length = 0 };
	bool closed;

	if (!ours->status || (control->failure_from_peer && !control->answers) ||
	    control->peer_closed || control->out < 0)
		return false;
	put_u32(&writer, (uint32_t)ours->status);
	put_string(&writer, control->reason_withheld ? "the client could not connect"
						     : ours->text);
	/* This is the last frame. An error while sending it is not reported. */
	control->failure = &ignored;
	control->timeout_ms = PEER_REASON_MS;
	closed = try_send(control, FRAME_ERROR, &writer) > 0;
	control->failure = ours;
	return closed;
}

void control_send_failure(struct control *control)
{
	struct failure *ours = control->failure;
	struct failure ignored = { 0 };

	if (!control_try_sending_failure(control))
		return;
	control->failure = &ignored;
	fail_broken_pipe(control);
	control->failure = ours;
}

/* Another thread may be sending. */
static void close_out(struct control *control)
{
	if (control->onward)
		pthread_mutex_lock(&control->onward->lock);
	if (control->out >= 0 && !control->carrier)
		close(control->out);
	control->out = -1;
	if (control->outbox) {
		free(control->outbox->data);
		*control->outbox = (struct outbox){ .length = 0 };
	}
	if (control->onward)
		pthread_mutex_unlock(&control->onward->lock);
}

/* Returns whether the answer is FRAME_DONE. */
static bool report_and_listen(struct control *control, uint32_t ms)
{
	struct failure ignored = { 0 }, *ours = control->failure;
	struct frame frame = { 0 };
	uint64_t deadline;

	if (control->failure_from_peer || control->peer_closed || control->out < 0)
		return false;
	/* If the other side has closed its pipe, its last frame is still to be read. */
	control_try_sending_failure(control);
	/* That was the last frame: later calls of control_send_failure() send nothing. */
	close_out(control);
	deadline = deadline_after(ms);
	control->failure = &ignored;
	while (frame.type != FRAME_DONE && receive_until(control, &frame, deadline) == 0)
		;
	control->failure = ours;
	if (control->failure_from_peer)
		*ours = ignored;
	if (!control->failure_from_peer && !control->peer_closed &&
	    frame.type != FRAME_DONE)
		control->waited_ms = (int)ms;
	/* It has heard of the failure. */
	control->peer_closed = false;
	return frame.type == FRAME_DONE;
}

bool control_send_failure_unless_done(struct control *control)
{
	return report_and_listen(control, NAMING_MS);
}

void control_ask_for_cause(struct control *control)
{
	report_and_listen(control, PEER_REASON_MS);
}

/* Unlike other waits it does not end on a signal: both sides have got that one. */
bool control_await_close(struct control *control)
{
	uint64_t deadline = deadline_after(PEER_REASON_MS), now;
	struct pollfd pollfd = { .fd = control->in, .events = POLLIN };
	uint8_t ignored[256];

	if (control->peer_closed)
		return true;
	while (control->in >= 0 && (now = now_ns()) < deadline)
		if (poll(&pollfd, 1, (int)((deadline - now) / 1000000) + 1) == 1 &&
		    read(control->in, ignored, sizeof(ignored)) == 0)
			return true;
	return false;
}

void control_close(struct control *control)
{
	if (control->in >= 0)
		close(control->in);
	control->in = -1;
	close_out(control);
}
