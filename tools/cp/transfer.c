/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "chunk.h"
#include "transfer.h"
#include "units.h"

enum {
	SECOND_NS = 1000000000,
	/* A few threads saturate memory or the disk. */
	THREADS_CHOSEN_MAX = 4,
};

static unsigned int choose_threads(const struct transfer *transfer)
{
	long processors = sysconf(_SC_NPROCESSORS_ONLN);
	unsigned int threads = transfer->settings->threads;

	if (!threads)
		threads = processors < 2 * THREADS_CHOSEN_MAX
				  ? (unsigned int)(processors + 1) / 2
				  : THREADS_CHOSEN_MAX;
	return threads ? threads : 1;
}

int prepare_transfer(struct transfer *transfer, uint64_t size)
{
	transfer->size = size;
	if (open_link(&transfer->link, transfer->role, transfer->settings, transfer->side,
		      transfer->local, size, transfer->failure) < 0)
		return -1;
	transfer->report = transfer->link.report;
	transfer->substitute = transfer->link.substitute;
	begin_digest(&transfer->digest, transfer->settings->secret, size);
	return start_workers(choose_threads(transfer), PIECE_SIZE, &transfer->workers,
			     transfer->failure);
}

/* The receiver must offer as much memory as the sender will write. */
static int check_peer(struct transfer *transfer)
{
	if (transfer->role == CP_SENDER &&
	    transfer->peer.remote.length <
		    (uint64_t)transfer->link.chunk * transfer->link.depth)
		return fail(transfer->failure, EXIT_PEER,
			    "the receiver offered too little memory");
	return 0;
}

/*
 * The server's endpoint contains the address to connect to. The client does not report
 * why connecting failed: "refused", "no route" or "timed out" would let a hostile server
 * scan the client's network.
 */
static int connect_channel(struct transfer *transfer)
{
	struct control *control = transfer->control;

	if (pier_channel_connect(transfer->link.channel, &transfer->peer.endpoint) == 0)
		return 0;
	fail_channel(transfer, "connecting");
	control->reason_withheld = control->peer &&
				   transfer->failure->status == EXIT_PEER;
	return -1;
}

int connect_transfer(struct transfer *transfer)
{
	struct control *control = transfer->control;
	struct setup_message setup;
	struct frame frame;

	if (link_setup(&transfer->link, transfer->role, &setup, transfer->failure) < 0 ||
	    send_setup(control, &setup) < 0 ||
	    receive_setup(control, &transfer->peer) < 0 || check_peer(transfer) < 0 ||
	    connect_channel(transfer) < 0 ||
	    control_send(control, FRAME_READY, NULL) < 0 ||
	    control_expect(control, FRAME_READY, &frame) < 0)
		return -1;
	transfer->started_ns = now_ns();
	restart_timeout(transfer);
	return 0;
}

void close_transfer(struct transfer *transfer)
{
	/* First the workers: their jobs access the memory. */
	stop_workers(transfer->workers);
	transfer->workers = NULL;
	if (close_link(&transfer->link) != 0)
		fail_pier(transfer->failure, EXIT_DEVICE);
}

void restart_timeout(struct transfer *transfer)
{
	transfer->deadline_ns = now_ns() +
				(uint64_t)transfer->settings->timeout_ms * 1000000;
}

/* Returns false for a frame that the other side must not send during a transfer. */
static bool take_frame(struct transfer *transfer, const struct frame *frame)
{
	size_t digest_size = transfer->settings->verify ? CP_DIGEST_SIZE : 0;

	if (frame->type == FRAME_END && transfer->role == CP_RECEIVER &&
	    frame->length == digest_size) {
		memcpy(transfer->peer_digest, frame->payload, digest_size);
		transfer->peer_ended = true;
		return true;
	}
	if (frame->type == FRAME_DONE && transfer->role == CP_SENDER) {
		transfer->peer_done = true;
		return true;
	}
	return frame->type == FRAME_KEEPALIVE;
}

static int handle_frame(struct transfer *transfer)
{
	struct frame frame;

	if (control_receive(transfer->control, &frame) < 0)
		return -1;
	restart_timeout(transfer);
	if (!take_frame(transfer, &frame))
		return fail(transfer->failure, EXIT_PEER,
			    "unexpected control message of type %u", frame.type);
	return 0;
}

/* Send keepalives well before the other side times out. */
static uint64_t keepalive_interval(const struct transfer *transfer)
{
	uint64_t quarter = (uint64_t)transfer->settings->timeout_ms * 1000000 / 4;

	return quarter < SECOND_NS ? quarter : SECOND_NS;
}

static int send_keepalive(struct transfer *transfer, uint64_t now)
{
	restart_timeout(transfer);
	if (now - transfer->keepalive_ns < keepalive_interval(transfer))
		return 0;
	transfer->keepalive_ns = now;
	if (transfer->control->out < 0)
		return 0;
	return control_send(transfer->control, FRAME_KEEPALIVE, NULL);
}

static int milliseconds_until(uint64_t time_ns, uint64_t now)
{
	if (time_ns <= now)
		return 0;
	return (int)((time_ns - now + 999999) / 1000000);
}

/* Sleep until an event or `until_ns`. Returns the number of events, or -1. */
static int poll_events(struct transfer *transfer, uint64_t until_ns)
{
	bool idle = transfer->channel_idle;
	struct pier_channel *channel = transfer->link.channel;
	struct pollfd fds[] = {
		{ .fd = transfer->control->signal_fd, .events = POLLIN },
		{ .fd = transfer->control->in, .events = POLLIN },
		{ .fd = idle ? -1 : pier_channel_fd(channel), .events = POLLIN },
		{ .fd = workers_fd(transfer->workers), .events = POLLIN },
	};
	int collected = idle ? 0 : pier_channel_arm(channel), ready;

	if (collected < 0)
		return fail_channel(transfer, "waiting");
	ready = poll(fds, 4, collected ? 0 : milliseconds_until(until_ns, now_ns()));
	if (ready < 0 && errno != EINTR)
		return fail(transfer->failure, EXIT_PEER, "poll: %s", strerror(errno));
	if (control_check_signal(transfer->control) < 0 ||
	    (fds[1].revents && handle_frame(transfer) < 0))
		return -1;
	return (ready > 0 ? ready : 0) + collected;
}

int transfer_wait(struct transfer *transfer, bool working, uint64_t wake_ns)
{
	uint64_t now = now_ns(), until = now + keepalive_interval(transfer);
	int events;

	if (working && send_keepalive(transfer, now) < 0)
		return -1;
	if (wake_ns && wake_ns < until)
		until = wake_ns;
	events = poll_events(transfer, until);
	if (events < 0)
		return -1;
	/* This process was stopped (Ctrl-Z) or got no CPU; so may have the other side. */
	if (now_ns() - now > 2 * keepalive_interval(transfer))
		restart_timeout(transfer);
	if (!events && now_ns() > transfer->deadline_ns)
		return fail(transfer->failure, EXIT_PEER,
			    "no progress for %g s (see --timeout)",
			    transfer->settings->timeout_ms / 1e3);
	return 0;
}

int fail_channel(struct transfer *transfer, const char *step)
{
	/* control_read_peer_failure() may replace the library's message: keep a copy. */
	struct failure ours = { 0 };

	fail(&ours, EXIT_PEER, "%s failed: %s", step, pier_error_message());
	control_read_peer_failure(transfer->control);
	return fail(transfer->failure, ours.status, "%s", ours.text);
}

int poll_request(struct transfer *transfer, struct pier_work work,
		 struct pier_result *ret_result)
{
	int done = pier_work_poll(transfer->link.channel, work, ret_result);

	if (done < 0)
		return fail_channel(transfer, "polling");
	if (done > 0 && ret_result->error)
		return fail_channel(transfer, "the transfer");
	return done;
}
