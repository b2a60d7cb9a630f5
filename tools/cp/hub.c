/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nodes.h"
#include "units.h"

/* A frame that a node has sent, and the conversation that it belongs to. */
struct message {
	uint32_t from; /* the node */
	enum speaker {
		FROM_SENDER = 1,
		FROM_DESTINATION = 2,
		FROM_RELAY = 4, /* of a destination: inside FRAME_ONWARD */
		FROM_ANY = 7,
	} speaker;
	enum side side; /* on which the neighbour is */
	uint32_t type;
	const uint8_t *payload;
	size_t length;
};

/* Measure the silence of all from now on. */
static void start_times(struct hub *hub)
{
	for (uint32_t i = 0; i < hub->count; i++)
		hub->nodes[i].heard_ns = hub->nodes[i].worked_ns = hub_now(hub);
}

static bool has_connected(const struct hub *hub, uint32_t index)
{
	const struct node *node = &hub->nodes[index];

	return (index == 0 || node->said[BEFORE] == SAID_ALL) &&
	       (node->said[BEHIND] == SAID_ALL || !find_neighbour(hub, index, BEHIND));
}

/*
 * Let all begin together. The sender and the receivers report files that are left out,
 * and a node that still connects does not expect such a report.
 */
static void check_connected(struct hub *hub)
{
	for (uint32_t i = 0; i < hub->count; i++)
		if (is_left(hub, i) && !has_connected(hub, i))
			return;
	for (uint32_t i = 0; i < hub->count; i++) {
		if (i > 0)
			send_aside(hub, i, BEFORE, FRAME_READY, NULL, 0);
		if (find_neighbour(hub, i, BEHIND))
			send_aside(hub, i, BEHIND, FRAME_READY, NULL, 0);
	}
	/* Sending may have failed. */
	if (hub->phase == HUB_CONNECTING)
		hub->phase = HUB_COPYING;
}

/* The frames by which two neighbours connect come once, in this order. */
static bool is_next_to_say(uint32_t said, uint32_t type)
{
	static const uint32_t to_say[SAID_ALL] = { FRAME_RAILS, FRAME_SETUP,
						   FRAME_READY };

	return said < SAID_ALL && type == to_say[said];
}

static void pass_aside(struct hub *hub, const struct message *message)
{
	struct node *node = &hub->nodes[message->from];
	uint32_t to = find_neighbour(hub, message->from, message->side);

	if (hub->phase == HUB_CONNECTING &&
	    !is_next_to_say(node->said[message->side], message->type)) {
		lose_invalid(hub, message->from);
		return;
	}
	if (node->stale[message->side] || (message->side == BEHIND && !to))
		return;
	if (hub->phase == HUB_CONNECTING) {
		node->said[message->side]++;
		node->worked_ns = node->heard_ns;
	}
	if (message->type == FRAME_READY && hub->phase == HUB_CONNECTING)
		check_connected(hub);
	else
		send_aside(hub, to, message->side == BEFORE ? BEHIND : BEFORE,
			   message->type, message->payload, message->length);
}

/* The sender speaks before the chain is known. */
static void hold_rails(struct hub *hub, const struct message *message)
{
	hub->held.type = message->type;
	hub->held.length = (uint32_t)message->length;
	memcpy(hub->held.payload, message->payload, message->length);
}

static void take_echo(struct hub *hub, const struct message *message)
{
	uint32_t *stale = &hub->nodes[message->from].stale[message->side];

	*stale -= *stale > 0;
}

static void take_link_failure(struct hub *hub, const struct message *message)
{
	struct wire_reader reader = { message->payload, message->length, false };
	char reason[sizeof(((struct failure *)0)->text)];
	uint32_t other = find_neighbour(hub, message->from, message->side);

	get_string(&reader, reason, sizeof(reason));
	if (hub->nodes[message->from].stale[message->side] || !wire_complete(&reader) ||
	    (message->side == BEHIND && !other))
		return;
	note_failed_link(hub, message->side == BEFORE ? message->from : other, reason);
}

/* A receiver could not begin to pass the stream on, or has no memory, or the like. */
static void take_relay_failure(struct hub *hub, const struct message *message)
{
	struct wire_reader reader = { message->payload, message->length, false };
	uint32_t status = get_u32(&reader);
	uint32_t behind = find_neighbour(hub, message->from, BEHIND);
	struct node *node = &hub->nodes[message->from];
	char text[sizeof(node->failure.text)];

	get_string(&reader, text, sizeof(text));
	if (!wire_complete(&reader) || status == 0 || status > UINT8_MAX) {
		lose_invalid(hub, message->from);
		return;
	}
	if (!behind || hub->phase >= HUB_ENDING)
		return;
	if (status == EXIT_PEER && hub->phase == HUB_CONNECTING) {
		note_failed_link(hub, behind, text);
		return;
	}
	fail(&node->failure, (int)status, "%s: %s", control_peer_name(&node->control),
	     text);
	if (status == EXIT_PEER)
		retry_at_end(node);
	lose_node(hub, message->from);
}

/* What the sender says of the files. */
static void repeat_to_all(struct hub *hub, const struct message *message)
{
	/* Their time to open begins when they have the whole list. */
	if (hub->phase == HUB_OPENING && !hub->held.type)
		start_times(hub);
	send_to_others(hub, 0, message->type, message->payload, message->length);
}

static void take_end(struct hub *hub, const struct message *message)
{
	hub->phase = HUB_ENDING;
	start_times(hub);
	repeat_to_all(hub, message);
}

/* The sender shows it to the user. */
static void pass_notice_on(struct hub *hub, const struct message *message)
{
	struct control *control = &hub->nodes[message->from].control;
	char sentence[sizeof(control->failure->text)];
	char named[sizeof(sentence) + 300];
	uint32_t number;

	if (read_file_notice(control, &hub->nodes[message->from].inbox.frame, &number,
			     sentence, sizeof(sentence)) < 0) {
		lose_node(hub, message->from);
		return;
	}
	snprintf(named, sizeof(named), "%s: %s", control_peer_name(control), sentence);
	if (send_file_notice(&hub->nodes[0].control, number, named) < 0)
		lose_node(hub, 0);
}

/* No more of them than an honest one sends. */
static void pass_keepalive(struct hub *hub, const struct message *message)
{
	struct node *node = &hub->nodes[message->from];

	/* While neighbours connect, only what they say to each other is work. */
	if (hub->phase != HUB_CONNECTING)
		node->worked_ns = node->heard_ns;
	if (node->heard_ns < node->alive_ns + ms_to_ns(tick_ms(hub)) / 2)
		return;
	node->alive_ns = node->heard_ns;
	send_to_others(hub, message->from, FRAME_KEEPALIVE, NULL, 0);
}

static void note_opened(struct hub *hub, const struct message *message)
{
	struct node *node = &hub->nodes[message->from];

	if (node->state == NODE_STARTED)
		node->state = NODE_OPEN;
}

static void note_done(struct hub *hub, const struct message *message)
{
	if (hub->phase < HUB_ENDING && !hub->dry_run)
		lose_invalid(hub, message->from);
	else
		hub->nodes[message->from].state = NODE_DONE;
}

/* Sets of phases. */
#define IN(name) (1U << HUB_##name)
#define FLOWING	 (IN(COPYING) | IN(ENDING) | IN(OVER))
#define ALWAYS	 (IN(STARTING) | IN(OPENING) | IN(CONNECTING) | FLOWING)

/*
 * What each node may say in each phase, and what becomes of it. A node that says it in
 * another phase is lost. What is not here is repeated to all destinations if the sender
 * says it, and nothing if it is for a neighbour; a destination that says it is lost.
 */
static const struct hub_event {
	uint32_t type;
	uint32_t speakers, phases;
	enum listener {
		HUB,
		NEIGHBOUR,
		SENDER
	} listener; /* whose outbox it goes to */
	void (*take)(struct hub *hub, const struct message *message);
} hub_events[] = {
	{ FRAME_RAILS, FROM_SENDER, IN(OPENING), HUB, hold_rails },
	/* Later they may connect again, but their NICs stay the same. */
	{ FRAME_RAILS, FROM_ANY, IN(CONNECTING), NEIGHBOUR, pass_aside },
	{ FRAME_SETUP, FROM_ANY, IN(CONNECTING) | FLOWING, NEIGHBOUR, pass_aside },
	{ FRAME_READY, FROM_ANY, IN(CONNECTING) | FLOWING, NEIGHBOUR, pass_aside },
	{ FRAME_RELINK, FROM_ANY, ALWAYS, HUB, take_echo },
	{ FRAME_LINK_FAILED, FROM_ANY, ALWAYS, HUB, take_link_failure },
	{ FRAME_END, FROM_SENDER, ALWAYS, HUB, take_end },
	{ FRAME_KEEPALIVE, FROM_DESTINATION | FROM_RELAY, ALWAYS, HUB, pass_keepalive },
	{ FRAME_ERROR, FROM_RELAY, ALWAYS, HUB, take_relay_failure },
	{ FRAME_OPENED, FROM_DESTINATION, ALWAYS, HUB, note_opened },
	{ FRAME_FILE, FROM_DESTINATION, FLOWING, SENDER, pass_notice_on },
	{ FRAME_DONE, FROM_DESTINATION, ALWAYS, HUB, note_done },
	{ FRAME_PONG, FROM_DESTINATION, ALWAYS, HUB, NULL },
	{ FRAME_NONE, FROM_DESTINATION, ALWAYS, HUB, NULL },
};

/* Returns NULL if this speaker may never say it. */
static const struct hub_event *find_event(const struct hub *hub,
					  const struct message *message)
{
	const struct hub_event *found = NULL;

	for (size_t i = 0; i < sizeof(hub_events) / sizeof(hub_events[0]); i++) {
		const struct hub_event *event = &hub_events[i];

		if (event->type != message->type || !(event->speakers & message->speaker))
			continue;
		found = event;
		if (event->phases >> hub->phase & 1)
			break;
	}
	return found;
}

static void take_message(struct hub *hub, const struct message *message)
{
	const struct hub_event *event = find_event(hub, message);

	if (message->speaker == FROM_SENDER && hub->phase == HUB_OVER)
		return;
	if (!event && message->speaker == FROM_SENDER)
		repeat_to_all(hub, message);
	else if (event ? !(event->phases >> hub->phase & 1)
		       : message->speaker == FROM_DESTINATION)
		lose_invalid(hub, message->from);
	else if (event && event->take)
		event->take(hub, message);
}

/* The message in the inbox. */
static struct message read_message(const struct hub *hub, uint32_t index)
{
	const struct frame *frame = &hub->nodes[index].inbox.frame;
	struct wire_reader reader = read_frame(frame);
	struct message message = { .from = index,
				   .speaker = index ? FROM_DESTINATION : FROM_SENDER,
				   .side = index ? BEFORE : BEHIND,
				   .type = frame->type };

	if (index > 0 && frame->type == FRAME_ONWARD) {
		message.speaker = FROM_RELAY;
		message.side = BEHIND;
		message.type = get_u32(&reader);
	}
	message.payload = reader.data;
	message.length = reader.left;
	return message;
}

static void tell_chain(struct hub *hub, uint32_t index)
{
	struct node *node = &hub->nodes[index];
	struct chain_message chain = { .passes_on = find_neighbour(hub, index, BEHIND) !=
						    0 };

	node->had_before = find_neighbour(hub, index, BEFORE) > 0;
	list_addresses(hub, index, chain.addresses, sizeof(chain.addresses));
	if (send_chain(&node->control, &chain) < 0)
		lose_node(hub, index);
}

/* Whether the others need not wait for it in this phase. */
static bool has_done_its_part(const struct hub *hub, uint32_t index)
{
	enum node_state state = hub->nodes[index].state;

	if (state == NODE_DONE || state == NODE_OUT)
		return true;
	switch (hub->phase) {
	case HUB_STARTING:
		return hub->nodes[index].control.preamble_read;
	case HUB_OPENING:
		return state == NODE_OPEN;
	case HUB_CONNECTING:
		return has_connected(hub, index);
	default:
		return false;
	}
}

static bool have_done_their_part(const struct hub *hub)
{
	for (uint32_t i = 1; i < hub->count; i++)
		if (!has_done_its_part(hub, i))
			return false;
	return count_left(hub) > 0;
}

static void check_started(struct hub *hub)
{
	if (hub->phase != HUB_STARTING || !have_done_their_part(hub))
		return;
	hub->phase = HUB_OPENING;
	start_times(hub);
	send_to(hub, 0, FRAME_READY, NULL);
}

/* Until then, a destination that fails is simply not in the chain. */
static void check_opened(struct hub *hub)
{
	if (hub->phase != HUB_OPENING || !have_done_their_part(hub))
		return;
	hub->phase = HUB_CONNECTING;
	start_times(hub);
	for (uint32_t i = 1; i < hub->count; i++)
		if (hub->nodes[i].state == NODE_OPEN)
			tell_chain(hub, i);
	/* Telling one of them may have failed. */
	if (hub->held.type && hub->phase == HUB_CONNECTING)
		take_message(hub,
			     &(struct message){ 0, FROM_SENDER, BEHIND, hub->held.type,
						hub->held.payload, hub->held.length });
}

static void check_done(struct hub *hub)
{
	for (uint32_t i = 1; i < hub->count; i++)
		if (is_left(hub, i) && hub->nodes[i].state != NODE_DONE)
			return;
	if (hub->phase == HUB_OVER || count_left(hub) == 0)
		return;
	hub->phase = HUB_OVER;
	send_to(hub, 0, FRAME_DONE, NULL);
}

/* The sender's connection to the first receiver may fail before any data moved. */
static void take_sender_failure(struct hub *hub)
{
	struct node *sender = &hub->nodes[0];

	if (hub->phase == HUB_CONNECTING && sender->failure.status == EXIT_PEER &&
	    sender->control.failure_from_peer) {
		note_failed_link(hub, find_neighbour(hub, 0, BEHIND),
				 sender->failure.text);
		judge_failed_link(hub, find_neighbour(hub, 0, BEHIND));
	}
	hub->phase = HUB_OVER;
}

/* While neighbours connect, one can fail because the other has. */
static void take_destination_failure(struct hub *hub, uint32_t index)
{
	struct node *node = &hub->nodes[index];

	if (hub->phase != HUB_CONNECTING || node->failure.status != EXIT_PEER ||
	    !node->control.failure_from_peer) {
		if (may_be_neighbours_fault(hub, index))
			retry_at_end(node);
		lose_node(hub, index);
		return;
	}
	note_failed_link(hub, index, node->failure.text);
	node->failure = (struct failure){ 0 };
	control_close(&node->control);
}

/* Whoever is left hears that the copy ends, and not only that a pipe was closed. */
static void dismiss_all(struct hub *hub)
{
	const struct failure *failure = &hub->nodes[0].failure;
	bool is_reason = failure->status && failure->status != EXIT_PEER;

	hub->phase = HUB_OVER;
	for (uint32_t i = 1; i < hub->count; i++) {
		send_error(hub, i, BEFORE, is_reason ? failure->status : EXIT_PEER,
			   is_reason ? failure->text : "the client ended the copy");
		control_flush(&hub->nodes[i].control);
	}
}

static bool is_any_behind(const struct hub *hub)
{
	for (uint32_t i = 1; i < hub->count; i++)
		if (is_behind(hub, i))
			return true;
	return false;
}

/*
 * Whether the frame in the inbox is for one that is behind: a neighbour, the sender, or
 * any destination. The sender may be behind because it is blocked in writing: then its
 * frame must not wait.
 */
static bool must_wait(const struct hub *hub, const struct message *message)
{
	const struct hub_event *event = find_event(hub, message);

	if (hub->phase == HUB_OVER)
		return false;
	if (message->speaker == FROM_SENDER)
		return is_any_behind(hub) && !is_behind(hub, 0) && !hub->sender_closed;
	if (event && event->listener == NEIGHBOUR)
		return is_behind(hub, find_neighbour(hub, message->from, message->side));
	return event && event->listener == SENDER && is_behind(hub, 0);
}

/* Read what is there. Returns whether a frame is in the inbox. */
static bool read_from(struct hub *hub, uint32_t index)
{
	struct node *node = &hub->nodes[index];
	int result = control_receive_part(&node->control, &node->inbox);

	if (result == 0)
		return false;
	node->heard_ns = hub_now(hub);
	if (result > 0)
		return true;
	if (index > 0) {
		take_destination_failure(hub, index);
	} else {
		take_sender_failure(hub);
		node->state = NODE_OUT;
	}
	return false;
}

static void take_from(struct hub *hub, uint32_t index)
{
	struct node *node = &hub->nodes[index];
	struct message message;

	/* Its copy is complete, however its process ends. */
	if (node->state == NODE_DONE) {
		control_close(&node->control);
		return;
	}
	if (!node->waits && !read_from(hub, index))
		return;
	message = read_message(hub, index);
	node->waits = must_wait(hub, &message);
	if (!node->waits)
		take_message(hub, &message);
}

/* Before the stream flows, all wait for the slowest; and afterwards, the sender does. */
static void check_progress(struct hub *hub)
{
	uint64_t timeout_ns = ms_to_ns(hub->timeout_ms);

	for (uint32_t i = 1; i < hub->count && hub->phase != HUB_OVER; i++) {
		if (has_done_its_part(hub, i) ||
		    hub->ticked_ns <= hub->nodes[i].worked_ns + timeout_ns)
			continue;
		lose_silent(hub, hub->phase == HUB_CONNECTING ? blame_slower(hub, i) : i,
			    hub->timeout_ms);
	}
	send_to_others(hub, hub->count, FRAME_KEEPALIVE, NULL, 0);
}

static void tick_hub(struct hub *hub)
{
	uint64_t now = hub_now(hub);
	uint32_t silence_ms = hub->timeout_ms / 2, silent;

	if (now < hub->ticked_ns + ms_to_ns(tick_ms(hub)))
		return;
	if (now_ns() - hub->system_ns > ms_to_ns(hub->timeout_ms) / 4)
		hub->stopped_ns = now;
	hub->ticked_ns = now;
	hub->system_ns = now_ns();
	hub->status_ms = STATUS_MS;
	for (uint32_t i = 1; i < hub->count; i++)
		send_to(hub, i, FRAME_PING, NULL);
	if (hub->phase <= HUB_CONNECTING || hub->phase == HUB_ENDING)
		check_progress(hub);
	silent = find_silent(hub, silence_ms);
	if (!silent && (hub->phase == HUB_CONNECTING || hub->phase == HUB_COPYING))
		judge_failed_links(hub);
	for (; silent && hub->phase != HUB_OVER; silent = find_silent(hub, silence_ms))
		lose_silent(hub, silent, silence_ms);
}

/* Two descriptors for each node: the one to read from, and the one to write to. */
static void list_descriptors(struct hub *hub, struct pollfd *ret_fds)
{
	for (uint32_t i = 0; i < hub->count; i++) {
		struct node *node = &hub->nodes[i];
		/* Without events, poll() still tells when the sender has closed. */
		int in = node->waits && i > 0 ? -1 : node->control.in;
		int out = node->outbox.length ? node->control.out : -1;

		/* A node that waits is not silent. */
		if (node->waits)
			node->heard_ns = hub_now(hub);
		if (!is_behind(hub, i))
			node->read_ns = hub_now(hub);
		ret_fds[2 * i] = (struct pollfd){ .fd = in,
						  .events = node->waits ? 0 : POLLIN };
		ret_fds[2 * i + 1] = (struct pollfd){ .fd = out, .events = POLLOUT };
	}
}

/* One round. Returns whether to go on. */
static bool serve_nodes(struct hub *hub, struct pollfd *fds)
{
	for (uint32_t i = 0; i < hub->count; i++)
		flush_node(hub, i);
	list_descriptors(hub, fds);
	if (poll(fds, 2 * (nfds_t)hub->count, (int)tick_ms(hub)) < 0 && errno != EINTR)
		return false;
	hub->sender_closed |= hub->nodes[0].waits && fds[0].revents;
	for (uint32_t i = 0; i < hub->count; i++)
		if ((fds[2 * i].revents || hub->nodes[i].waits) &&
		    hub->nodes[i].control.in >= 0)
			take_from(hub, i);
	tick_hub(hub);
	check_started(hub);
	check_opened(hub);
	check_done(hub);
	return is_left(hub, 0);
}

void run_hub(struct hub *hub)
{
	struct pollfd *fds = calloc(2 * (size_t)hub->count, sizeof(*fds));

	hub->ticked_ns = hub->system_ns = now_ns();
	hub->stopped_ns = 0;
	hub->status_ms = STATUS_MS;
	start_times(hub);
	while (fds && serve_nodes(hub, fds))
		;
	dismiss_all(hub);
	free(fds);
}
