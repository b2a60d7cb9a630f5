/* SPDX-License-Identifier: BSD-3-Clause */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "frames.h"
#include "units.h"

enum {
	PREAMBLE_SIZE = 16,
	/* All magic numbers begin with "\x89PIER". */
	MAGIC_COMMON = 5,
	/* How long to wait for a failure report from the other side. */
	PEER_REASON_MS = 1000,
	/* How long the receiver may take to name its file. Below EXIT_WAIT_MS in
	 * start.c. */
	NAMING_MS = 1500,
};

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
			    "%s runs another command of pier, not 'pier %s': check the "
			    "forced command of the key there (sshd(8))",
			    control_peer_name(control), control->protocol->command);
	return fail(control->failure, EXIT_PEER,
		    "%s sent something other than the %s protocol, beginning with "
		    "\"%s\": the start-up files of the shell there must not print "
		    "anything",
		    control_peer_name(control), control->protocol->name,
		    (const char *)noise);
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

void control_read_peer_failure(struct control *control)
{
	struct failure none = { 0 }, *ours = control->failure;
	uint64_t deadline = deadline_after(PEER_REASON_MS);
	struct frame frame;
	int result = 0;

	control->failure = &none;
	if (!control->preamble_read)
		result = read_all(control, frame.payload, PREAMBLE_SIZE, deadline);
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
