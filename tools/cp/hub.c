/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blame.h"
#include "hub.h"
#include "units.h"

/* The frames by which two neighbours connect, in this order. */
static const uint32_t to_say[SAID_ALL] = { FRAME_RAILS, FRAME_SETUP, FRAME_READY };

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

/* Later they may connect again, but their NICs stay the same. */
static bool is_expected(const struct hub *hub, uint32_t said, uint32_t type)
{
	if (hub->phase == HUB_CONNECTING)
		return said < SAID_ALL && type == to_say[said];
	return hub->phase > HUB_CONNECTING && type != FRAME_RAILS;
}

static void pass_aside(struct hub *hub, uint32_t index, enum side side, uint32_t type,
		       const uint8_t *payload, size_t length)
{
	struct node *node = &hub->nodes[index];
	uint32_t to = find_neighbour(hub, index, side);

	if (!is_expected(hub, node->said[side], type)) {
		lose_invalid(hub, index);
		return;
	}
	if (node->stale[side] || (side == BEHIND && !to))
		return;
	if (hub->phase == HUB_CONNECTING) {
		node->said[side]++;
		node->worked_ns = node->heard_ns;
	}
	if (type == FRAME_READY && hub->phase == HUB_CONNECTING)
		check_connected(hub);
	else
		send_aside(hub, to, side == BEFORE ? BEHIND : BEFORE, type, payload,
			   length);
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
		pass_aside(hub, 0, BEHIND, hub->held.type, hub->held.payload,
			   hub->held.length);
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

static void take_link_failure(struct hub *hub, uint32_t index, enum side side,
			      const uint8_t *payload, size_t length)
{
	struct wire_reader reader = { payload, length, false };
	char reason[sizeof(((struct failure *)0)->text)];
	uint32_t other = find_neighbour(hub, index, side);

	get_string(&reader, reason, sizeof(reason));
	if (hub->nodes[index].stale[side] || !wire_complete(&reader) ||
	    (side == BEHIND && !other))
		return;
	note_failed_link(hub, side == BEFORE ? index : other, reason);
}

/* A receiver could not begin to pass the stream on, or has no memory, or the like. */
static void take_relay_failure(struct hub *hub, uint32_t index, const uint8_t *payload,
			       size_t length)
{
	struct wire_reader reader = { payload, length, false };
	uint32_t status = get_u32(&reader), behind = find_neighbour(hub, index, BEHIND);
	struct node *node = &hub->nodes[index];
	char text[sizeof(node->failure.text)];

	get_string(&reader, text, sizeof(text));
	if (!wire_complete(&reader) || status == 0 || status > UINT8_MAX) {
		lose_invalid(hub, index);
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
	lose_node(hub, index);
}

/* Returns whether the frame is for a neighbour, or about it. */
static bool take_aside(struct hub *hub, uint32_t index, enum side side, uint32_t type,
		       const uint8_t *payload, size_t length)
{
	uint32_t *stale = &hub->nodes[index].stale[side];

	switch (type) {
	case FRAME_RAILS:
	case FRAME_SETUP:
	case FRAME_READY:
		pass_aside(hub, index, side, type, payload, length);
		return true;
	case FRAME_RELINK:
		*stale -= *stale > 0;
		return true;
	case FRAME_LINK_FAILED:
		take_link_failure(hub, index, side, payload, length);
		return true;
	default:
		return false;
	}
}

static void take_from_sender(struct hub *hub, const struct frame *frame)
{
	if (hub->phase == HUB_OPENING && frame->type == FRAME_RAILS) {
		hub->held = *frame;
		return;
	}
	if (hub->phase == HUB_OVER)
		return;
	/* Their time to open begins when they have the whole list. */
	if (hub->phase == HUB_OPENING && !hub->held.type)
		start_times(hub);
	if (take_aside(hub, 0, BEHIND, frame->type, frame->payload, frame->length))
		return;
	if (frame->type == FRAME_END) {
		hub->phase = HUB_ENDING;
		start_times(hub);
	}
	send_to_others(hub, 0, frame->type, frame->payload, frame->length);
}

/* The sender shows it to the user. */
static void pass_notice_on(struct hub *hub, uint32_t index, const struct frame *frame)
{
	struct control *control = &hub->nodes[index].control;
	char sentence[sizeof(control->failure->text)];
	char named[sizeof(sentence) + 300];
	uint32_t number;

	if (hub->phase < HUB_COPYING) {
		lose_invalid(hub, index);
		return;
	}
	if (read_file_notice(control, frame, &number, sentence, sizeof(sentence)) < 0) {
		lose_node(hub, index);
		return;
	}
	snprintf(named, sizeof(named), "%s: %s", control_peer_name(control), sentence);
	if (send_file_notice(&hub->nodes[0].control, number, named) < 0)
		lose_node(hub, 0);
}

/* No more of them than an honest one sends. */
static void pass_keepalive(struct hub *hub, uint32_t index)
{
	struct node *node = &hub->nodes[index];

	/* While neighbours connect, only what they say to each other is work. */
	if (hub->phase != HUB_CONNECTING)
		node->worked_ns = node->heard_ns;
	if (node->heard_ns < node->alive_ns + ms_to_ns(tick_ms(hub)) / 2)
		return;
	node->alive_ns = node->heard_ns;
	send_to_others(hub, index, FRAME_KEEPALIVE, NULL, 0);
}

static void take_onward(struct hub *hub, uint32_t index, const struct frame *frame)
{
	struct wire_reader reader = read_frame(frame);
	uint32_t type = get_u32(&reader);

	if (reader.bad || take_aside(hub, index, BEHIND, type, reader.data, reader.left))
		return;
	if (type == FRAME_ERROR)
		take_relay_failure(hub, index, reader.data, reader.left);
	else if (type == FRAME_KEEPALIVE)
		pass_keepalive(hub, index);
}

static void take_from_destination(struct hub *hub, uint32_t index,
				  const struct frame *frame)
{
	struct node *node = &hub->nodes[index];

	if (frame->type == FRAME_PONG || frame->type == FRAME_NONE)
		return;
	if (take_aside(hub, index, BEFORE, frame->type, frame->payload, frame->length))
		return;
	switch (frame->type) {
	case FRAME_KEEPALIVE:
		pass_keepalive(hub, index);
		return;
	case FRAME_ONWARD:
		take_onward(hub, index, frame);
		return;
	case FRAME_FILE:
		pass_notice_on(hub, index, frame);
		return;
	case FRAME_OPENED:
		if (node->state == NODE_STARTED)
			node->state = NODE_OPEN;
		return;
	case FRAME_DONE:
		if (hub->phase < HUB_ENDING && !hub->dry_run)
			lose_invalid(hub, index);
		else
			node->state = NODE_DONE;
		return;
	default:
		lose_invalid(hub, index);
	}
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
static bool must_wait(const struct hub *hub, uint32_t index)
{
	if (hub->phase == HUB_OVER)
		return false;
	if (index == 0)
		return is_any_behind(hub) && !is_behind(hub, 0) && !hub->sender_closed;
	switch (hub->nodes[index].inbox.frame.type) {
	case FRAME_RAILS:
	case FRAME_SETUP:
	case FRAME_READY:
		return is_behind(hub, find_neighbour(hub, index, BEFORE));
	case FRAME_ONWARD:
		return is_behind(hub, find_neighbour(hub, index, BEHIND));
	case FRAME_FILE:
		return is_behind(hub, 0);
	default:
		return false;
	}
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

	/* Its copy is complete, however its process ends. */
	if (node->state == NODE_DONE) {
		control_close(&node->control);
		return;
	}
	if (!node->waits && !read_from(hub, index))
		return;
	node->waits = must_wait(hub, index);
	if (node->waits)
		return;
	if (index > 0)
		take_from_destination(hub, index, &node->inbox.frame);
	else
		take_from_sender(hub, &node->inbox.frame);
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

	if (!is_tick_due(hub))
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
