/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "chunk.h"
#include "port.h"
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
	unsigned int threads = THREADS_CHOSEN_MAX;

	if (transfer->settings->threads)
		return transfer->settings->threads;
	if (processors < 2 * THREADS_CHOSEN_MAX)
		threads = processors > 1 ? (unsigned int)(processors + 1) / 2 : 1;
	/* Nothing reads ahead of direct reads: some threads wait for the disk. */
	return transfer->role == CP_SENDER ? 2 * threads : threads;
}

/* A single file has no list, and few notices. */
void set_budget(struct transfer *transfer)
{
	const struct cp_settings *settings = transfer->settings;
	uint64_t chunks = settings->tree ? settings->chunk * settings->depth : 0;

	atomic_store(&transfer->budget.left, CP_MEMORY_MAX - chunks);
}

int prepare_transfer(struct transfer *transfer, uint64_t size)
{
	transfer->size = size;
	if (open_link(&transfer->link, transfer->role, transfer->settings, transfer->side,
		      transfer->local, size, transfer->control) < 0)
		return -1;
	transfer->report = transfer->link.report;
	if (transfer->link.substitute && transfer->client && !transfer->quiet)
		print_error("pier cp: no usable RDMA device: using the software "
			    "NIC " PIER_SOFT_DEVICE);
	begin_digest(&transfer->digest, transfer->settings->secret, size);
	return start_workers(choose_threads(transfer), PIECE_SIZE, &transfer->workers,
			     transfer->failure);
}

/* If the copy succeeded with fewer NICs than it began with. */
static void note_lost_rail(struct transfer *transfer)
{
	struct link *link = &transfer->link;
	const struct rail *lost = NULL;
	struct pier_rail_status status;
	uint32_t working = 0;
	char reason[PIER_RAIL_SENTENCE_SIZE];

	for (uint32_t i = 0; i < link->rail_count; i++) {
		status = link_rail_status(link, i);
		working += !status.error;
		if (!status.error)
			continue;
		lost = &link->rails[i];
		memcpy(reason, status.sentence, sizeof(reason));
	}
	if (lost && working > 0 && !transfer->failure->status)
		snprintf(transfer->lost, sizeof(transfer->lost),
			 "the copy went on without %.80s: %s",
			 pier_device_name(lost->device), reason);
}

void close_transfer(struct transfer *transfer)
{
	note_lost_rail(transfer);
	/* First the workers: their jobs access the memory. */
	stop_workers(transfer->workers);
	transfer->workers = NULL;
	close_kept(&transfer->kept);
	if (close_link(&transfer->link) != 0)
		fail_pier(transfer->failure, EXIT_DEVICE);
}

void restart_timeout(struct transfer *transfer)
{
	transfer->deadline_ns = now_ns() +
				(uint64_t)transfer->settings->timeout_ms * 1000000;
	transfer->cause[0] = '\0';
	transfer->repaired = false;
}

void describe_rail(const struct transfer *transfer, const struct rail *rail,
		   char ret_text[CP_RAIL_TEXT_MAX])
{
	ret_text[0] = '\0';
	if (transfer->link.rail_count > 1)
		snprintf(ret_text, CP_RAIL_TEXT_MAX,
			 " on %.80s, of %u NICs (to leave it out, name the others with "
			 "--device or --remote-device)",
			 rail ? pier_device_name(rail->device) : "one",
			 transfer->link.rail_count);
}

/* The other side has reset its channel. */
static int take_setup(struct transfer *transfer, const struct frame *frame)
{
	char nic[CP_RAIL_TEXT_MAX];

	if (read_setup(transfer->control, frame, &transfer->peer) < 0)
		return -1;
	describe_rail(transfer, NULL, nic);
	if (!transfer->cause[0])
		snprintf(transfer->cause, sizeof(transfer->cause),
			 "%.80s lost the connection%s",
			 control_peer_name(transfer->control), nic);
	transfer->broken = transfer->peer_is_set_up = true;
	return 0;
}

/* What the old neighbour said does not count any more. */
static int take_relink(struct transfer *transfer)
{
	if (control_send(transfer->control, FRAME_RELINK, NULL) < 0)
		return -1;
	if (transfer->channel_idle || transfer->peer_ended)
		return 0;
	transfer->relinked = transfer->broken = transfer->peer_is_new = true;
	transfer->peer_is_set_up = transfer->peer_is_ready = false;
	return 0;
}

/* The user's part; the terminal may show the progress in this line. */
static void show_notice(struct transfer *transfer, uint32_t number, const char *sentence)
{
	end_progress(transfer->progress);
	print_error("pier cp: %s", sentence);
	transfer->left_out += number != NOTICE_OF_DESTINATION;
}

/* Take FRAME_FILE. */
static int take_file_notice(struct transfer *transfer, const struct frame *frame)
{
	char sentence[sizeof(transfer->failure->text)];
	uint32_t number;

	if (read_file_notice(transfer->control, frame, &number, sentence,
			     sizeof(sentence)) < 0)
		return -1;
	if (transfer->client)
		show_notice(transfer, NOTICE_OF_NO_FILE, sentence);
	if (transfer->role == CP_RECEIVER && transfer->tree &&
	    number < transfer->tree->list.count)
		leave_out_entry(transfer->tree, number);
	return 0;
}

int take_frame(struct transfer *transfer, const struct frame *frame)
{
	size_t digest_size = transfer->settings->verify ? CP_DIGEST_SIZE : 0;

	if (frame->type == FRAME_KEEPALIVE || frame->type == FRAME_NONE)
		return 0;
	if (frame->type == FRAME_RELINK && transfer->settings->chain)
		return take_relink(transfer);
	if ((frame->type == FRAME_SETUP || frame->type == FRAME_READY) &&
	    (transfer->channel_idle || transfer->awaits_relink))
		return 0;
	if (frame->type == FRAME_SETUP && !transfer->peer_is_set_up)
		return take_setup(transfer, frame);
	if (frame->type == FRAME_END && transfer->role == CP_RECEIVER &&
	    frame->length == digest_size) {
		memcpy(transfer->peer_digest, frame->payload, digest_size);
		transfer->peer_ended = true;
		return 0;
	}
	if (frame->type == FRAME_FILE && !transfer->peer_ended)
		return take_file_notice(transfer, frame);
	if (frame->type == FRAME_DONE && transfer->role == CP_SENDER) {
		transfer->peer_done = true;
		return 0;
	}
	return fail(transfer->failure, EXIT_PEER, "unexpected control message of type %u",
		    frame->type);
}

static int handle_frame(struct transfer *transfer)
{
	struct frame frame;

	if (control_receive(transfer->control, &frame) < 0)
		return -1;
	/* Restoring the channel again and again is no progress. */
	if (frame.type != FRAME_SETUP && frame.type != FRAME_NONE)
		restart_timeout(transfer);
	return take_frame(transfer, &frame);
}

/* Send keepalives well before the other side times out. */
static uint64_t keepalive_interval(const struct transfer *transfer)
{
	uint64_t quarter = (uint64_t)transfer->settings->timeout_ms * 1000000 / 4;

	return quarter < SECOND_NS ? quarter : SECOND_NS;
}

static int send_keepalive(struct transfer *transfer, uint64_t now)
{
	if (now - transfer->keepalive_ns < keepalive_interval(transfer))
		return 0;
	transfer->keepalive_ns = now;
	if (transfer->control->out < 0)
		return 0;
	return control_send(transfer->control, FRAME_KEEPALIVE, NULL);
}

int keep_peer_waiting(struct transfer *transfer)
{
	if (control_check_signal(transfer->control) < 0)
		return -1;
	restart_timeout(transfer);
	return send_keepalive(transfer, now_ns());
}

int keep_chain_waiting(struct transfer *transfer)
{
	return transfer->settings->chain ? send_keepalive(transfer, now_ns()) : 0;
}

static int milliseconds_until(uint64_t time_ns, uint64_t now)
{
	if (time_ns <= now)
		return 0;
	return (int)((time_ns - now + 999999) / 1000000);
}

/*
 * Returns how many completions need no event. A channel that cannot be armed is one: the
 * next step of the stream finds the reason.
 */
static int arm_channels(struct transfer *transfer, struct pollfd *fds)
{
	int collected = 0;

	for (uint32_t i = 0; i < transfer->link.rail_count; i++) {
		struct pier_channel *channel = transfer->link.rails[i].channel;
		int count;

		fds[i] = (struct pollfd){ .fd = -1, .events = POLLIN };
		if (transfer->channel_idle || transfer->link.result > 0 ||
		    link_rail_status(&transfer->link, i).error)
			continue;
		count = pier_channel_arm(channel);
		collected += count < 0 ? 1 : count;
		fds[i].fd = pier_channel_fd(channel);
	}
	return collected;
}

/* Sleep until an event or `until_ns`. Returns the number of events, or -1. */
static int poll_events(struct transfer *transfer, uint64_t until_ns)
{
	struct pollfd fds[3 + CP_RAILS_MAX] = {
		{ .fd = transfer->control->signal_fd, .events = POLLIN },
		{ .fd = transfer->control->in, .events = POLLIN },
		{ .fd = workers_fd(transfer->workers), .events = POLLIN },
	};
	int collected = arm_channels(transfer, fds + 3), ready;

	ready = poll(fds, 3 + transfer->link.rail_count,
		     collected ? 0 : milliseconds_until(until_ns, now_ns()));
	if (ready < 0 && errno != EINTR)
		return fail(transfer->failure, EXIT_PEER, "poll: %s", strerror(errno));
	if (control_check_signal(transfer->control) < 0 ||
	    (fds[1].revents && handle_frame(transfer) < 0))
		return -1;
	return (ready > 0 ? ready : 0) + collected;
}

/* In a chain, the client decides what happens next: see await_relink(). */
int ask_peer_for_cause(struct transfer *transfer)
{
	if (!transfer->settings->chain && transfer->failure->status == EXIT_PEER &&
	    !is_port_down(transfer))
		control_ask_for_cause(transfer->control);
	return -1;
}

/* The other side may have failed, too, and know why. */
static int fail_with_peer(struct transfer *transfer, const struct failure *ours)
{
	/* Reading may replace the library's message, which `ours` has a copy of. */
	if (!transfer->settings->chain)
		control_read_peer_failure(transfer->control);
	if (transfer->failure->status)
		return -1;
	*transfer->failure = *ours;
	return ask_peer_for_cause(transfer);
}

static int fail_silent(struct transfer *transfer)
{
	fail(transfer->failure, EXIT_PEER, "no progress for %g s (see --timeout)%s%s",
	     transfer->settings->timeout_ms / 1e3, transfer->cause[0] ? ": " : "",
	     transfer->cause);
	return transfer->channel_idle ? -1 : ask_peer_for_cause(transfer);
}

int transfer_wait(struct transfer *transfer, bool working, uint64_t wake_ns)
{
	uint64_t now = now_ns(), until = now + keepalive_interval(transfer);
	int events;

	if (working)
		restart_timeout(transfer);
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
		return fail_silent(transfer);
	return 0;
}

/*
 * The network may come back. Other errors, of memory or rights, would only occur again;
 * and if nothing has ever arrived, the connection was never good.
 */
static bool can_be_restored(const struct transfer *transfer)
{
	struct pier_channel_failure failure;

	for (uint32_t i = 0; i < transfer->link.rail_count; i++)
		if (pier_channel_error(transfer->link.rails[i].channel, &failure) == 0 ||
		    (failure.error_class != PIER_CLASS_UNREACHABLE &&
		     failure.error_class != PIER_CLASS_FLUSHED))
			return false;
	return transfer->has_moved && !transfer->channel_idle &&
	       now_ns() < transfer->deadline_ns;
}

/* Restoring fails with a reason, and the connection is still broken then. */
bool is_to_be_restored(const struct transfer *transfer)
{
	return transfer->broken && !transfer->failure->status;
}

/* The first that is broken, and rather one that reached nobody than one that was flushed.
 */
static const struct rail *find_broken_rail(const struct transfer *transfer)
{
	const struct rail *broken = NULL;
	struct pier_channel_failure failure;

	for (uint32_t i = 0; i < transfer->link.rail_count; i++) {
		const struct rail *rail = &transfer->link.rails[i];

		if (pier_channel_error(rail->channel, &failure) == 0)
			continue;
		if (failure.error_class == PIER_CLASS_UNREACHABLE)
			return rail;
		broken = broken ? broken : rail;
	}
	return broken;
}

int drive_link(struct transfer *transfer)
{
	struct link *link = &transfer->link;
	bool had_ended = link->result > 0;

	if (link->result == 0)
		link_progress(link);
	for (uint32_t i = 0; i < link->rail_count && !transfer->has_moved; i++)
		transfer->has_moved = link_rail_status(link, i).done > 0;
	if (link->result < 0)
		return fail_channel(transfer, "the transfer");
	return link->result > 0 && !had_ended;
}

int fail_channel(struct transfer *transfer, const char *step)
{
	return fail_rail(transfer, find_broken_rail(transfer), step);
}

int fail_rail(struct transfer *transfer, const struct rail *rail, const char *step)
{
	struct failure ours = { 0 };
	char nic[CP_RAIL_TEXT_MAX];

	describe_rail(transfer, rail, nic);
	fail(&ours, EXIT_PEER, "%s failed%s: %s", step, nic, pier_error_message());
	if (can_be_restored(transfer)) {
		/* Later ones may only follow from the first. */
		if (!transfer->cause[0])
			snprintf(transfer->cause, sizeof(transfer->cause), "%s",
				 ours.text);
		transfer->broken = true;
		return -1;
	}
	return fail_with_peer(transfer, &ours);
}

/* All chunks match their tags. Check that the tags are those the sender made. */
int check_digest(struct transfer *transfer)
{
	uint8_t digest[CP_DIGEST_SIZE];

	if (!transfer->settings->verify)
		return 0;
	finish_digest(&transfer->digest, digest);
	if (digests_equal(digest, transfer->peer_digest))
		return 0;
	return fail(transfer->failure, EXIT_VERIFY,
		    "verification failed: the chunks that arrived are not those the "
		    "sender sent");
}

/* A signal ends the remote shells, too (Ctrl-C): that does not leave a destination out.
 */
static bool is_due_to_signal(const struct transfer *transfer, const struct notice *notice)
{
	return notice->number == NOTICE_OF_DESTINATION &&
	       transfer->failure->status > EXIT_SIGNAL &&
	       !transfer->control->failure_from_peer;
}

void show_notices(struct transfer *transfer)
{
	struct notice *notice;

	while (transfer->client && (notice = take_notice(&transfer->notices))) {
		if (!is_due_to_signal(transfer, notice))
			show_notice(transfer, notice->number, notice->sentence);
		free(notice);
	}
}

static int pass_notice(struct transfer *transfer, const struct notice *notice)
{
	if (transfer->client)
		show_notice(transfer, notice->number, notice->sentence);
	if (notice->number == NOTICE_OF_DESTINATION)
		return 0;
	/* A receiver must leave the file out, too, and a server has no user. */
	if (transfer->role == CP_SENDER || !transfer->client)
		return send_file_notice(transfer->control, notice->number,
					notice->sentence);
	return 0;
}

int check_notices(const struct transfer *transfer)
{
	if (!transfer->notices.lost)
		return 0;
	return fail(transfer->failure, EXIT_FILE,
		    "there is no memory to report all files that cannot be copied: leave "
		    "them out with --exclude, or copy fewer directories at a time");
}

int pass_notices(struct transfer *transfer)
{
	struct notice *notice;
	int result = 0, count = 0;

	while (result == 0 && (notice = take_notice(&transfer->notices))) {
		result = pass_notice(transfer, notice);
		free(notice);
		count++;
	}
	if (result == 0)
		result = check_notices(transfer);
	return result < 0 ? -1 : count;
}

int take_file_notices(struct transfer *transfer)
{
	struct frame frame;

	do {
		if (control_receive(transfer->control, &frame) < 0 ||
		    (frame.type != FRAME_END && take_frame(transfer, &frame) < 0))
			return -1;
	} while (frame.type != FRAME_END);
	return 0;
}
