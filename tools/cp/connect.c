/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include <pier/recovery.h>
#include <pier/stream.h>

#include "connect.h"
#include "port.h"
#include "units.h"

enum {
	PAUSE_MS = 100, /* between two attempts to restore the channel */
};

/* The receiver must offer as much memory as the sender will write. */
static int check_peer(struct transfer *transfer)
{
	if (transfer->peer.rail_count != transfer->link.rail_count)
		return fail(transfer->failure, EXIT_PEER,
			    "%s connects %u NICs, this side %u",
			    control_peer_name(transfer->control),
			    transfer->peer.rail_count, transfer->link.rail_count);
	for (uint32_t i = 0; i < transfer->link.rail_count; i++)
		if (transfer->role == CP_SENDER &&
		    transfer->peer.remotes[i].length < transfer->link.stream_size)
			return fail(transfer->failure, EXIT_PEER,
				    "the receiver offered too little memory");
	return 0;
}

/*
 * The server's endpoint contains the address to connect to. The client does not report
 * why connecting failed: "refused", "no route" or "timed out" would let a hostile server
 * scan the client's network.
 */
static int fail_connecting(struct transfer *transfer, const struct rail *rail)
{
	struct control *control = transfer->control;

	control->reason_withheld = control->peer != NULL;
	fail_rail(transfer, rail, "connecting");
	control->reason_withheld = control->peer &&
				   transfer->failure->status == EXIT_PEER;
	return -1;
}

/* Returns the rail that could not be connected, or NULL. */
static const struct rail *connect_channels(const struct transfer *transfer)
{
	for (uint32_t i = 0; i < transfer->link.rail_count; i++) {
		const struct rail *rail = &transfer->link.rails[i];

		if (pier_channel_connect(rail->channel, &transfer->peer.endpoints[i]) < 0)
			return rail;
	}
	return NULL;
}

/* All of them, also those that work. Returns the rail that failed, or NULL. */
static const struct rail *reset_channels(const struct transfer *transfer, int *ret_error)
{
	for (uint32_t i = 0; i < transfer->link.rail_count; i++) {
		const struct rail *rail = &transfer->link.rails[i];

		*ret_error = pier_channel_reset(rail->channel);
		if (*ret_error < 0)
			return rail;
	}
	return NULL;
}

/*
 * Longer than the timeout of the copy, which has the better sentence. In a chain all
 * wait for each other, and only the stream can tell which connection is silent.
 */
static int stall_time(const struct cp_settings *settings)
{
	uint32_t timeout_ms = settings->timeout_ms;

	if (settings->chain)
		return (int)(timeout_ms / 2 + 1);
	return timeout_ms < INT_MAX / 2 ? (int)timeout_ms * 2 : INT_MAX;
}

/* Before the sender can connect, so that its first chunk finds receives. */
static int begin_receiving(struct transfer *transfer)
{
	if (transfer->role == CP_RECEIVER &&
	    link_begin_receiving(&transfer->link, stall_time(transfer->settings)) < 0)
		return fail_pier(transfer->failure, EXIT_DEVICE);
	return 0;
}

/* Before the receiver hears that both sides are connected. */
static int begin_sending(struct transfer *transfer)
{
	if (transfer->role == CP_SENDER &&
	    link_begin_sending(&transfer->link, stall_time(transfer->settings),
			       transfer->peer.remotes) < 0)
		return fail_pier(transfer->failure, EXIT_DEVICE);
	return 0;
}

/* The receiver has got bytes from another sender. */
static int adopt_position(struct transfer *transfer)
{
	struct link *link = &transfer->link;
	uint64_t next = transfer->peer.next;

	if (transfer->role != CP_SENDER || !transfer->peer_is_new)
		return 0;
	if (next + link->stream_size < pier_transfer_limit(link->transfer))
		return fail(transfer->failure, EXIT_PEER,
			    "the receiver lacks chunks that it had before");
	return pier_transfer_released(link->transfer, next) < 0
		       ? fail_pier(transfer->failure, EXIT_PEER)
		       : 0;
}

static int offer_setup(struct transfer *transfer, uint64_t next)
{
	struct setup_message setup;

	if (link_setup(&transfer->link, transfer->role, &setup, transfer->failure) < 0)
		return -1;
	setup.next = next;
	return send_setup(transfer->control, &setup);
}

int connect_transfer(struct transfer *transfer)
{
	struct control *control = transfer->control;
	const struct rail *failed;
	struct frame frame;

	if (begin_receiving(transfer) < 0 || offer_setup(transfer, 0) < 0 ||
	    receive_setup(control, &transfer->peer) < 0 || check_peer(transfer) < 0)
		return -1;
	failed = connect_channels(transfer);
	if (failed)
		return fail_connecting(transfer, failed);
	if (begin_sending(transfer) < 0)
		return -1;
	if (control_send(control, FRAME_READY, NULL) < 0 ||
	    control_expect(control, FRAME_READY, &frame) < 0)
		return -1;
	transfer->started_ns = now_ns();
	restart_timeout(transfer);
	return 0;
}

static int handle_late_frame(struct transfer *transfer)
{
	struct frame frame;

	if (control_receive(transfer->control, &frame) < 0)
		return -1;
	if (frame.type != FRAME_READY)
		return take_frame(transfer, &frame);
	transfer->peer_is_ready = true;
	return 0;
}

/* The other side may have failed, or may report that its channel broke, too. */
static int wait_for_peer(struct transfer *transfer, int timeout_ms)
{
	struct control *control = transfer->control;
	struct pollfd fds[] = {
		{ .fd = control->signal_fd, .events = POLLIN },
		{ .fd = control->in, .events = POLLIN },
	};

	if (keep_chain_waiting(transfer) < 0)
		return -1;
	if (poll(fds, 2, timeout_ms) <= 0)
		return 0;
	if (control_check_signal(control) < 0)
		return -1;
	return fds[1].revents ? handle_late_frame(transfer) : 0;
}

/*
 * Messages do not end the pause: each attempt sends one, so two sides that fail at once
 * would never pause.
 */
static int pause_before_retry(struct transfer *transfer)
{
	uint64_t now = now_ns(), end = now + PAUSE_MS * UINT64_C(1000000);

	for (; now < end && !transfer->peer_ended; now = now_ns())
		if (wait_for_peer(transfer, (int)((end - now + 999999) / 1000000)) < 0)
			return -1;
	return 0;
}

/* While the port is down, it has no address, and the channel cannot be prepared. */
static bool may_come_back(const struct transfer *transfer, int error)
{
	return (error == -ENETDOWN || error == -EADDRNOTAVAIL) &&
	       now_ns() < transfer->deadline_ns;
}

static int fail_restoring(struct transfer *transfer, const struct rail *rail, int error)
{
	const char *broke = transfer->cause[0] ? transfer->cause : "the connection broke";
	char nic[CP_RAIL_TEXT_MAX];

	describe_rail(transfer, rail, nic);
	if (error == -ENETDOWN)
		return fail(transfer->failure, EXIT_PEER,
			    "%s; the port did not come back for %g s (see --timeout)%s",
			    broke, transfer->settings->timeout_ms / 1e3, nic);
	return fail(transfer->failure, EXIT_PEER, "%s; it cannot be restored%s: %s",
		    broke, nic, pier_error_message());
}

int reset_transfer(struct transfer *transfer)
{
	const struct rail *failed;
	int error = 0;

	if (transfer->repaired && pause_before_retry(transfer) < 0)
		return -1;
	link_stop(&transfer->link);
	while ((failed = reset_channels(transfer, &error))) {
		if (!may_come_back(transfer, error))
			return fail_restoring(transfer, failed, error);
		if (pause_before_retry(transfer) < 0)
			return -1;
	}
	transfer->broken = false;
	return begin_receiving(transfer);
}

static uint64_t after_timeouts(const struct transfer *transfer, unsigned int count)
{
	return now_ns() + (uint64_t)transfer->settings->timeout_ms * 1000000 * count;
}

/* Wait a moment for the other side's part. */
static int await_answer(struct transfer *transfer, uint64_t deadline_ns)
{
	if (now_ns() < deadline_ns)
		return wait_for_peer(transfer, PAUSE_MS);
	return fail(transfer->failure, EXIT_PEER,
		    "%s did not respond for %g s (see --timeout)",
		    control_peer_name(transfer->control),
		    transfer->settings->timeout_ms / 1e3);
}

/* Another other side knows nothing of the set-up that this side has sent. */
static int await_setup(struct transfer *transfer)
{
	uint64_t deadline = after_timeouts(transfer, 1);

	while (!transfer->peer_is_set_up && !transfer->peer_ended && !transfer->relinked)
		if (await_answer(transfer, deadline) < 0)
			return -1;
	transfer->broken = transfer->relinked && !transfer->peer_ended;
	transfer->peer_is_set_up = false;
	return 0;
}

/*
 * The other side sends another FRAME_SETUP if it could not connect. An earlier
 * FRAME_READY is older than the attempt: it could connect then, but not this side.
 */
static int await_ready(struct transfer *transfer)
{
	uint64_t deadline = after_timeouts(transfer, 1);

	transfer->peer_is_ready = false;
	while (!transfer->peer_is_ready && !transfer->broken)
		if (await_answer(transfer, deadline) < 0)
			return -1;
	if (!transfer->broken) {
		transfer->repairs++;
		transfer->repaired = true;
		transfer->peer_is_new = false;
	}
	return 0;
}

static int try_reconnecting(struct transfer *transfer, uint64_t next)
{
	const struct rail *failed;

	transfer->relinked = false;
	if (offer_setup(transfer, next) < 0 || await_setup(transfer) < 0)
		return -1;
	if (transfer->peer_ended || transfer->broken)
		return 0;
	if (check_peer(transfer) < 0 || adopt_position(transfer) < 0)
		return -1;
	failed = connect_channels(transfer);
	if (failed) {
		if (now_ns() >= transfer->deadline_ns)
			return fail_connecting(transfer, failed);
		transfer->broken = true;
		return pause_before_retry(transfer);
	}
	if (begin_sending(transfer) < 0 ||
	    control_send(transfer->control, FRAME_READY, NULL) < 0)
		return -1;
	return await_ready(transfer);
}

/* The other side's silence says less than why the channel broke. */
static int add_cause(struct transfer *transfer)
{
	struct failure *failure = transfer->failure;
	size_t used = strlen(failure->text);

	if (transfer->cause[0] && failure->status == EXIT_PEER &&
	    !transfer->control->failure_from_peer && !transfer->control->peer_closed)
		snprintf(failure->text + used, sizeof(failure->text) - used,
			 "; before, %s", transfer->cause);
	return ask_peer_for_cause(transfer);
}

int reconnect_transfer(struct transfer *transfer, uint64_t next)
{
	return try_reconnecting(transfer, next) < 0 ? add_cause(transfer) : 0;
}

static int report_failed_link(struct transfer *transfer, const char *reason)
{
	struct wire_writer writer = { .length = 0 };

	put_string(&writer, reason);
	return control_send(transfer->control, FRAME_LINK_FAILED, &writer);
}

int await_relink(struct transfer *transfer)
{
	const struct control *control = transfer->control;
	struct failure *failure = transfer->failure, link_failure;
	uint64_t deadline;
	int result = 0;

	/* The sender ends when all have everything: no neighbour will help after that. */
	if (!transfer->settings->chain || transfer->channel_idle ||
	    transfer->peer_ended || failure->status != EXIT_PEER ||
	    control->failure_from_peer || control->peer_closed || control->out < 0)
		return -1;
	name_down_port(transfer);
	link_failure = *failure;
	*failure = (struct failure){ 0 };
	transfer->relinked = false;
	/* The client gives the neighbour time, too. */
	deadline = after_timeouts(transfer, 2);
	if (report_failed_link(transfer, link_failure.text) < 0)
		return -1;
	transfer->awaits_relink = true;
	while (result == 0 && !transfer->relinked && !transfer->peer_ended &&
	       now_ns() < deadline)
		result = wait_for_peer(transfer, PAUSE_MS);
	transfer->awaits_relink = false;
	if (result < 0 || transfer->relinked || transfer->peer_ended)
		return result;
	*failure = link_failure;
	return -1;
}
