/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include <pier/recovery.h>
#include <pier/stream.h>

#include "connection.h"
#include "units.h"

enum {
	SECOND_NS = 1000000000,
	PAUSE_NS = 100000000, /* between two attempts to restore the channels */
	RAIL_TEXT_MAX = 256,
};

/* Sets of states. */
#define IN(name) (1U << CONNECTION_##name)
#define RESTORING                                                               \
	(IN(BROKEN) | IN(CALLED) | IN(OFFERED) | IN(ANSWERED) | IN(CONNECTED) | \
	 IN(REPORTED))
#define OVER (IN(ENDED) | IN(IDLE) | IN(DONE))

static bool is_in(const struct connection *connection, uint32_t states)
{
	return states >> connection->state & 1;
}

bool is_restoring(const struct connection *connection)
{
	return is_in(connection, RESTORING);
}

int open_connection(struct connection *connection, uint64_t size)
{
	return open_stream(&connection->stream, connection->role, connection->settings,
			   connection->side, connection->local, size,
			   connection->control);
}

/* If the copy succeeded with fewer NICs than it began with. */
static void note_lost_rail(struct connection *connection)
{
	struct stream *stream = &connection->stream;
	uint32_t working = 0;

	for (uint32_t i = 0; i < stream->rail_count; i++) {
		struct pier_rail_status status = stream_rail_status(stream, i);

		working += !status.error;
		if (status.error)
			snprintf(connection->lost, sizeof(connection->lost),
				 "the copy went on without %.80s: %s",
				 pier_device_name(stream->rails[i].device),
				 status.sentence);
	}
	if (working == 0 || connection->failure->status)
		connection->lost[0] = '\0';
}

void close_connection(struct connection *connection)
{
	note_lost_rail(connection);
	/* First the workers: their jobs access the memory. */
	stop_workers(&connection->workers);
	if (close_stream(&connection->stream) != 0)
		fail_pier(connection->failure, EXIT_DEVICE);
}

static uint64_t after_timeouts(const struct connection *connection, unsigned int count)
{
	return now_ns() + (uint64_t)connection->settings->timeout_ms * 1000000 * count;
}

void restart_timeout(struct connection *connection)
{
	connection->deadline_ns = after_timeouts(connection, 1);
	connection->retry_ns = 0;
	connection->cause[0] = '\0';
}

void name_down_port(struct connection *connection)
{
	struct failure *failure = connection->failure, symptom = *failure;
	char text[256];

	if (failure->status != EXIT_PEER ||
	    !stream_find_down_port(&connection->stream, text, sizeof(text)))
		return;
	snprintf(failure->text, sizeof(failure->text), "%s (%.*s)", text,
		 (int)(sizeof(failure->text) - sizeof(text) - sizeof(" ()")),
		 symptom.text);
	connection->control->answers = true;
}

/*
 * If the network may have failed, and no port of this side is down: report the failure,
 * which the other side replaces if one of its ports is. In a chain, the client decides
 * what happens next: see report_failure(). Returns -1.
 */
static int ask_peer_for_cause(struct connection *connection)
{
	char text[256];

	if (!connection->settings->chain && connection->failure->status == EXIT_PEER &&
	    !stream_find_down_port(&connection->stream, text, sizeof(text)))
		control_ask_for_cause(connection->control);
	return -1;
}

/*
 * For the sentence of a failure: which of several NICs it was, and how to do without it;
 * "" if there is only one. rail: NULL if it is unknown.
 */
static void describe_rail(const struct connection *connection, const struct rail *rail,
			  char ret_text[RAIL_TEXT_MAX])
{
	ret_text[0] = '\0';
	if (connection->stream.rail_count > 1)
		snprintf(ret_text, RAIL_TEXT_MAX,
			 " on %.80s, of %u NICs (to leave it out, name the others with "
			 "--device or --remote-device)",
			 rail ? pier_device_name(rail->device) : "one",
			 connection->stream.rail_count);
}

/*
 * The network may come back. Other errors, of memory or rights, would only occur again;
 * and if nothing has ever arrived, the connection was never good.
 */
static bool can_be_restored(const struct connection *connection)
{
	struct pier_channel_failure failure;

	for (uint32_t i = 0; i < connection->stream.rail_count; i++)
		if (pier_channel_error(connection->stream.rails[i].channel, &failure,
				       sizeof(failure)) == 0 ||
		    (failure.error_class != PIER_CLASS_UNREACHABLE &&
		     failure.error_class != PIER_CLASS_FLUSHED))
			return false;
	return connection->has_moved && !is_in(connection, OVER) &&
	       now_ns() < connection->deadline_ns;
}

/* Later ones may only follow from the first. */
static void note_cause(struct connection *connection, const char *cause)
{
	if (!connection->cause[0])
		snprintf(connection->cause, sizeof(connection->cause), "%s", cause);
}

/* As fail_channel(), if the rail is known; NULL: it is not. */
static int fail_rail(struct connection *connection, const struct rail *rail,
		     const char *step)
{
	struct failure ours = { 0 };
	char nic[RAIL_TEXT_MAX];

	describe_rail(connection, rail, nic);
	fail(&ours, EXIT_PEER, "%s failed%s: %s", step, nic, pier_error_message());
	if (can_be_restored(connection)) {
		note_cause(connection, ours.text);
		connection->state = CONNECTION_BROKEN;
		return -1;
	}
	/* The other side may have failed, too, and know why. Reading may replace the
	 * library's message, which `ours` has a copy of. */
	if (!connection->settings->chain)
		control_read_peer_failure(connection->control);
	if (connection->failure->status)
		return -1;
	*connection->failure = ours;
	return ask_peer_for_cause(connection);
}

int fail_channel(struct connection *connection, const char *step)
{
	return fail_rail(connection, stream_find_broken_rail(&connection->stream), step);
}

int drive_link(struct connection *connection)
{
	struct stream *stream = &connection->stream;
	bool had_ended = stream->result > 0;

	if (stream->result == 0)
		stream_progress(stream);
	for (uint32_t i = 0; i < stream->rail_count && !connection->has_moved; i++)
		connection->has_moved = stream_rail_status(stream, i).done > 0;
	if (stream->result < 0)
		return fail_channel(connection, "the transfer");
	return stream->result > 0 && !had_ended;
}

/* The other side has reset its channels. */
static int take_setup(struct connection *connection, const struct frame *frame)
{
	char nic[RAIL_TEXT_MAX], cause[2 * RAIL_TEXT_MAX];

	if (parse_message(connection->control, frame, &connection->peer) < 0)
		return -1;
	describe_rail(connection, NULL, nic);
	snprintf(cause, sizeof(cause), "%.80s lost the connection%s",
		 control_peer_name(connection->control), nic);
	note_cause(connection, cause);
	return 0;
}

static int take_ready(struct connection *connection, const struct frame *frame)
{
	(void)frame;
	connection->repairs++;
	connection->is_proven = false;
	connection->peer_is_new = false;
	return 0;
}

/* Up to the echo, the client drops what is meant for the old neighbour. */
static int echo_relink(struct connection *connection, const struct frame *frame)
{
	(void)frame;
	connection->peer_is_new = true;
	return control_send(connection->control, FRAME_RELINK, NULL);
}

static int take_end(struct connection *connection, const struct frame *frame)
{
	memcpy(connection->peer_digest, frame->payload, frame->length);
	return 0;
}

static int take_file(struct connection *connection, const struct frame *frame)
{
	return connection->take_file(connection, frame);
}

/*
 * What may arrive in each state, and the state that follows. Another frame ends the copy.
 * A FRAME_SETUP or FRAME_READY that was sent before the other side knew of this state
 * changes nothing. So do those of the old neighbour in a chain.
 */
static const struct event {
	uint32_t frame;
	uint32_t roles, states;
	bool stays;
	enum connection_state next;
	int (*take)(struct connection *connection, const struct frame *frame);
} frame_events[] = {
	{ FRAME_SETUP, CP_SENDER | CP_RECEIVER, IN(FLOWING) | IN(BROKEN) | IN(CONNECTED),
	  .next = CONNECTION_CALLED, .take = take_setup },
	{ FRAME_SETUP, CP_SENDER | CP_RECEIVER, IN(OFFERED), .next = CONNECTION_ANSWERED,
	  .take = take_setup },
	{ FRAME_SETUP, CP_SENDER | CP_RECEIVER, IN(REPORTED) | OVER, .stays = true },
	{ FRAME_READY, CP_SENDER | CP_RECEIVER, IN(CONNECTED), .next = CONNECTION_FLOWING,
	  .take = take_ready },
	{ FRAME_READY, CP_SENDER | CP_RECEIVER, RESTORING | OVER, .stays = true },
	{ FRAME_RELINK, CP_SENDER | CP_RECEIVER, IN(FLOWING) | RESTORING,
	  .next = CONNECTION_BROKEN, .take = echo_relink },
	{ FRAME_RELINK, CP_SENDER | CP_RECEIVER, OVER, .stays = true,
	  .take = echo_relink },
	{ FRAME_FILE, CP_RECEIVER, IN(OPENING) | IN(FLOWING) | RESTORING, .stays = true,
	  .take = take_file },
	{ FRAME_FILE, CP_SENDER, IN(FLOWING) | RESTORING | OVER, .stays = true,
	  .take = take_file },
	{ FRAME_END, CP_RECEIVER, IN(FLOWING) | RESTORING, .next = CONNECTION_ENDED,
	  .take = take_end },
	{ FRAME_DONE, CP_SENDER, IN(IDLE), .next = CONNECTION_DONE },
};

/* NULL: such a frame, or one of this form, may not come now. */
static const struct event *find_event(const struct connection *connection,
				      const struct frame *frame)
{
	const struct cp_settings *settings = connection->settings;

	if ((frame->type == FRAME_RELINK && !settings->chain) ||
	    (frame->type == FRAME_FILE && !connection->take_file) ||
	    (frame->type == FRAME_END &&
	     frame->length != (settings->verify ? CP_DIGEST_SIZE : 0)))
		return NULL;
	for (size_t i = 0; i < sizeof(frame_events) / sizeof(frame_events[0]); i++)
		if (frame_events[i].frame == frame->type &&
		    (frame_events[i].roles & connection->role) &&
		    is_in(connection, frame_events[i].states))
			return &frame_events[i];
	return NULL;
}

int take_frame(struct connection *connection, const struct frame *frame)
{
	const struct event *event = find_event(connection, frame);

	/*
	 * Restoring the connection again and again is no progress. Neither are the
	 * keepalives that the other side sends meanwhile: they may arrive when this side
	 * believes that the connection is restored.
	 */
	if (!is_restoring(connection) && connection->is_proven &&
	    frame->type != FRAME_SETUP && frame->type != FRAME_NONE)
		restart_timeout(connection);
	if (frame->type == FRAME_KEEPALIVE || frame->type == FRAME_NONE)
		return 0;
	if (!event)
		return fail(connection->failure, EXIT_PEER,
			    "unexpected control message of type %u", frame->type);
	if (event->take && event->take(connection, frame) < 0)
		return -1;
	if (!event->stays)
		connection->state = event->next;
	return 0;
}

/* Send keepalives well before the other side times out. */
static uint64_t keepalive_interval(const struct connection *connection)
{
	uint64_t quarter = (uint64_t)connection->settings->timeout_ms * 1000000 / 4;

	return quarter < SECOND_NS ? quarter : SECOND_NS;
}

static int send_keepalive(struct connection *connection, uint64_t now)
{
	if (now - connection->keepalive_ns < keepalive_interval(connection))
		return 0;
	connection->keepalive_ns = now;
	if (connection->control->out < 0)
		return 0;
	return control_send(connection->control, FRAME_KEEPALIVE, NULL);
}

int keep_peer_waiting(struct connection *connection)
{
	if (control_check_signal(connection->control) < 0)
		return -1;
	restart_timeout(connection);
	return send_keepalive(connection, now_ns());
}

/*
 * Returns how many completions need no event. A channel that cannot be armed is one: the
 * next step of the stream finds the reason.
 */
static int arm_channels(struct connection *connection, struct pollfd *fds)
{
	bool flows = is_in(connection, IN(FLOWING) | IN(ENDED)) &&
		     connection->stream.result <= 0;
	int collected = 0;

	for (uint32_t i = 0; i < connection->stream.rail_count; i++) {
		struct pier_channel *channel = connection->stream.rails[i].channel;
		int count;

		fds[i] = (struct pollfd){ .fd = -1, .events = POLLIN };
		if (!flows || stream_rail_status(&connection->stream, i).error)
			continue;
		count = pier_channel_arm(channel);
		collected += count < 0 ? 1 : count;
		fds[i].fd = pier_channel_fd(channel);
	}
	return collected;
}

/* Sleep until an event or `until_ns`. Returns the number of events, or -1. */
static int poll_events(struct connection *connection, uint64_t until_ns)
{
	struct pollfd fds[3 + CP_RAILS_MAX] = {
		{ .fd = connection->control->signal_fd, .events = POLLIN },
		{ .fd = connection->control->in, .events = POLLIN },
		/* Jobs that have finished wait until the connection is restored. */
		{ .fd = is_restoring(connection) ? -1 : workers_fd(connection->workers),
		  .events = POLLIN },
	};
	int collected = arm_channels(connection, fds + 3), ready, wait_ms = 0;
	uint64_t now = now_ns();
	struct frame frame;

	if (!collected && until_ns > now)
		wait_ms = (int)((until_ns - now + 999999) / 1000000);
	ready = poll(fds, 3 + connection->stream.rail_count, wait_ms);
	if (ready < 0 && errno != EINTR)
		return fail(connection->failure, EXIT_PEER, "poll: %s", strerror(errno));
	if (control_check_signal(connection->control) < 0 ||
	    (fds[1].revents && (control_receive(connection->control, &frame) < 0 ||
				take_frame(connection, &frame) < 0)))
		return -1;
	return (ready > 0 ? ready : 0) + collected;
}

int wait_for_event(struct connection *connection, bool working, uint64_t wake_ns)
{
	uint64_t now = now_ns(), until = now + keepalive_interval(connection);
	uint64_t due = is_in(connection, IN(BROKEN) | IN(CALLED)) ? connection->retry_ns
								  : connection->answer_ns;
	int events;

	/*
	 * The other side may have failed, or may report that its channel broke, too. All
	 * others of a chain wait for this side, whose own timeout goes on.
	 */
	if (is_restoring(connection)) {
		if (connection->settings->chain && send_keepalive(connection, now) < 0)
			return -1;
		return poll_events(connection, due < until ? due : until) < 0 ? -1 : 0;
	}
	if (working)
		restart_timeout(connection);
	if (working && send_keepalive(connection, now) < 0)
		return -1;
	if (wake_ns && wake_ns < until)
		until = wake_ns;
	events = poll_events(connection, until);
	if (events < 0)
		return -1;
	/* This process was stopped (Ctrl-Z) or got no CPU; so may have the other side. */
	if (now_ns() - now > 2 * keepalive_interval(connection))
		restart_timeout(connection);
	if (events || now_ns() <= connection->deadline_ns)
		return 0;
	fail(connection->failure, EXIT_PEER, "no progress for %g s (see --timeout)%s%s",
	     connection->settings->timeout_ms / 1e3, connection->cause[0] ? ": " : "",
	     connection->cause);
	return is_in(connection, IN(IDLE)) ? -1 : ask_peer_for_cause(connection);
}

/* The receiver must offer as much memory as the sender will write. */
static int check_peer(struct connection *connection)
{
	if (connection->peer.rail_count != connection->stream.rail_count)
		return fail(connection->failure, EXIT_PEER,
			    "%s connects %u NICs, this side %u",
			    control_peer_name(connection->control),
			    connection->peer.rail_count, connection->stream.rail_count);
	for (uint32_t i = 0; i < connection->stream.rail_count; i++)
		if (connection->role == CP_SENDER &&
		    connection->peer.remotes[i].length < connection->stream.stream_size)
			return fail(connection->failure, EXIT_PEER,
				    "the receiver offered too little memory");
	return 0;
}

/*
 * The server's endpoint contains the address to connect to. The client does not report
 * why connecting failed: "refused", "no route" or "timed out" would let a hostile server
 * scan the client's network.
 */
static int fail_connecting(struct connection *connection, const struct rail *rail)
{
	struct control *control = connection->control;

	control->reason_withheld = control->peer != NULL;
	fail_rail(connection, rail, "connecting");
	control->reason_withheld = control->peer &&
				   connection->failure->status == EXIT_PEER;
	return -1;
}

/* Returns the rail that could not be connected, or NULL. */
static const struct rail *connect_channels(const struct connection *connection)
{
	for (uint32_t i = 0; i < connection->stream.rail_count; i++) {
		const struct rail *rail = &connection->stream.rails[i];

		if (pier_channel_connect(rail->channel, &connection->peer.endpoints[i]) <
		    0)
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

static int offer_setup(struct connection *connection)
{
	struct setup_message setup;

	/* Before the sender can connect, so that its first chunk finds receives. */
	if (connection->role == CP_RECEIVER &&
	    stream_begin_receiving(&connection->stream,
				   stall_time(connection->settings)) < 0)
		return fail_pier(connection->failure, EXIT_DEVICE);
	if (stream_setup(&connection->stream, connection->role, &setup,
			 connection->failure) < 0)
		return -1;
	return send_message(connection->control, FRAME_SETUP, &setup);
}

static int send_ready(struct connection *connection)
{
	/* Before the receiver hears that both sides are connected. */
	if (connection->role == CP_SENDER &&
	    stream_begin_sending(&connection->stream, stall_time(connection->settings),
				 connection->peer.remotes) < 0)
		return fail_pier(connection->failure, EXIT_DEVICE);
	return control_send(connection->control, FRAME_READY, NULL);
}

int connect_sides(struct connection *connection)
{
	struct control *control = connection->control;
	const struct rail *failed;
	struct frame frame;

	if (offer_setup(connection) < 0 ||
	    expect_message(control, FRAME_SETUP, &connection->peer) < 0 ||
	    check_peer(connection) < 0)
		return -1;
	failed = connect_channels(connection);
	if (failed)
		return fail_connecting(connection, failed);
	if (send_ready(connection) < 0 ||
	    control_expect(control, FRAME_READY, &frame) < 0)
		return -1;
	connection->state = CONNECTION_FLOWING;
	connection->is_proven = true;
	connection->started_ns = now_ns();
	restart_timeout(connection);
	return 0;
}

static int fail_resetting(struct connection *connection, const struct rail *rail,
			  int error)
{
	const char *broke = connection->cause[0] ? connection->cause
						 : "the connection broke";
	char nic[RAIL_TEXT_MAX];

	describe_rail(connection, rail, nic);
	if (error == -ENETDOWN)
		return fail(connection->failure, EXIT_PEER,
			    "%s; the port did not come back for %g s (see --timeout)%s",
			    broke, connection->settings->timeout_ms / 1e3, nic);
	return fail(connection->failure, EXIT_PEER, "%s; it cannot be restored%s: %s",
		    broke, nic, pier_error_message());
}

static void await_answer(struct connection *connection, enum connection_state state,
			 unsigned int timeouts)
{
	connection->state = state;
	connection->answer_ns = after_timeouts(connection, timeouts);
}

/*
 * Messages do not end the pause between two attempts: each attempt sends one, so two
 * sides that fail at once would never pause.
 */
static int begin_attempt(struct connection *connection)
{
	const struct rail *failed = NULL;
	struct stream *stream = &connection->stream;
	int error = 0;

	if (now_ns() < connection->retry_ns)
		return 0;
	connection->retry_ns = now_ns() + PAUSE_NS;
	stream_stop(stream);
	/* All of them, also those that work. */
	for (uint32_t i = 0; i < stream->rail_count && !failed; i++) {
		error = pier_channel_reset(stream->rails[i].channel);
		if (error < 0)
			failed = &stream->rails[i];
	}
	/* While the port is down, it has no address, and the channel cannot be prepared.
	 */
	if (failed && (error == -ENETDOWN || error == -EADDRNOTAVAIL) &&
	    now_ns() < connection->deadline_ns)
		return 0;
	if (failed)
		return fail_resetting(connection, failed, error);
	await_answer(connection,
		     connection->state == CONNECTION_CALLED ? CONNECTION_ANSWERED
							    : CONNECTION_OFFERED,
		     1);
	return offer_setup(connection) < 0 ? -1 : 1;
}

/*
 * The receiver may have got bytes from another sender. Or it has released everything
 * although this side could not be told: then the stream is not needed any more.
 */
static int take_position(struct connection *connection)
{
	struct stream *stream = &connection->stream;
	uint64_t next = connection->peer.next;

	if (connection->role != CP_SENDER)
		return 0;
	if (next > stream_extended(stream))
		return fail(connection->failure, EXIT_PEER,
			    "the receiver has chunks that were not sent");
	if (connection->peer_is_new && next < stream_credited(stream))
		return fail(connection->failure, EXIT_PEER,
			    "the receiver lacks chunks that it had before");
	if (connection->peer_is_new && pier_transfer_released(stream->transfer, next) < 0)
		return fail_pier(connection->failure, EXIT_PEER);
	if (stream->finished && next == stream_extended(stream))
		stream->result = 1;
	return 0;
}

static int connect_again(struct connection *connection)
{
	const struct rail *failed;

	if (check_peer(connection) < 0 || take_position(connection) < 0)
		return -1;
	failed = connect_channels(connection);
	if (failed && now_ns() >= connection->deadline_ns)
		return fail_connecting(connection, failed);
	if (failed) {
		connection->state = CONNECTION_BROKEN;
		return 1;
	}
	if (send_ready(connection) < 0)
		return -1;
	await_answer(connection, CONNECTION_CONNECTED, 1);
	return 1;
}

int restore_connection(struct connection *connection)
{
	switch (connection->state) {
	case CONNECTION_BROKEN:
	case CONNECTION_CALLED:
		return begin_attempt(connection);
	case CONNECTION_ANSWERED:
		return connect_again(connection);
	default:
		break;
	}
	if (now_ns() < connection->answer_ns)
		return 0;
	if (connection->state != CONNECTION_REPORTED)
		return fail(connection->failure, EXIT_PEER,
			    "%s did not respond for %g s (see --timeout)",
			    control_peer_name(connection->control),
			    connection->settings->timeout_ms / 1e3);
	*connection->failure = connection->reported;
	return -1;
}

/*
 * In a chain: report the failure of the connection to the client, which names another
 * neighbour, or the same. The sender ends when all have everything: no neighbour will
 * help after that.
 */
static int report_failure(struct connection *connection)
{
	const struct control *control = connection->control;
	struct wire_writer writer = { .length = 0 };
	struct failure *failure = connection->failure;

	if (!connection->settings->chain || is_in(connection, IN(REPORTED) | OVER) ||
	    failure->status != EXIT_PEER || control->failure_from_peer ||
	    control->peer_closed || control->out < 0)
		return -1;
	name_down_port(connection);
	connection->reported = *failure;
	*failure = (struct failure){ 0 };
	/* The client gives the neighbour time, too. */
	await_answer(connection, CONNECTION_REPORTED, 2);
	put_string(&writer, connection->reported.text);
	return control_send(connection->control, FRAME_HOP_FAILED, &writer);
}

int end_step(struct connection *connection, int moved, bool working, uint64_t wake_ns)
{
	const struct control *control = connection->control;
	struct failure *failure = connection->failure;
	size_t used;

	if (moved > 0 && !is_restoring(connection)) {
		connection->is_proven = true;
		restart_timeout(connection);
	}
	if (moved == 0)
		moved = wait_for_event(connection, working, wake_ns);
	/* A step fails without a failure if the connection is to be restored. */
	if (moved >= 0 || (is_restoring(connection) && !connection->failure->status))
		return 0;
	used = strlen(failure->text);
	if (is_in(connection, IN(OFFERED) | IN(ANSWERED) | IN(CONNECTED))) {
		/* The other side's silence says less than why the channel broke. */
		if (connection->cause[0] && failure->status == EXIT_PEER &&
		    !control->failure_from_peer && !control->peer_closed)
			snprintf(failure->text + used, sizeof(failure->text) - used,
				 "; before, %s", connection->cause);
		ask_peer_for_cause(connection);
	}
	return report_failure(connection);
}
